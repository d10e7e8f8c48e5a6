// A part of the page that is loaded when it is first shown.

import type { ComponentType } from "preact";
import { useEffect, useState } from "preact/hooks";
import { Failed } from "./notes";

export function later<P extends object>(load: () => Promise<ComponentType<P>>): ComponentType<P> {
  let loaded: ComponentType<P> | null = null;
  return function Later(props: P) {
    const [Found, setFound] = useState<{ part: ComponentType<P> } | null>(loaded && { part: loaded });
    const [failure, setFailure] = useState(false);
    useEffect(() => {
      if (!Found) {
        load().then(
          (part) => {
            loaded = part;
            setFound({ part });
          },
          () => setFailure(true),
        );
      }
    }, []);
    if (failure) return <Failed error={new Error("This page could not be loaded.")} again={() => location.reload()} />;
    return Found ? <Found.part {...props} /> : null;
  };
}
