import { defineConfig } from "vite";

// Every file but the document is named by its content, and nothing is inlined: the server's policy allows neither
// inline scripts nor data in their place.
export default defineConfig({
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 700,
  },
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
});
