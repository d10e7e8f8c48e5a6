// Markdown to HTML that cannot do anything: no scripts, no styles, no pictures, no forms, links that say where they lead.

import DOMPurify from "dompurify";
import { Marked } from "marked";

const ENTITIES: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

/** HTML inside Markdown is shown as text, and a picture as a link to it. */
const marked = new Marked({
  gfm: true,
  breaks: true,
  async: false,
  renderer: {
    html: ({ text }) => text.replace(/[&<>"]/g, (mark) => ENTITIES[mark]!),
    image: ({ href, text }) => `${text} (${href})`.replace(/[&<>"]/g, (mark) => ENTITIES[mark]!),
  },
});

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
  node.setAttribute("title", node.getAttribute("href") ?? "");
});

const TAGS = "p br strong em del code pre blockquote ul ol li h1 h2 h3 h4 h5 h6 hr a table thead tbody tr th td".split(" ");

export function toHtml(text: string): string {
  const html = marked.parse(text.slice(0, 100_000)) as string;
  return DOMPurify.sanitize(html, {
    ALLOWED_TAGS: TAGS,
    ALLOWED_ATTR: ["href"],
    ALLOWED_URI_REGEXP: /^https?:\/\//i,
  });
}
