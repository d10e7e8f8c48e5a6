// Something that is fetched for a page: what it is, or why it is not there.

import { useEffect, useState } from "preact/hooks";

export type Loaded<T> = { data: T | null; error: unknown; again: () => void };

/** Fetches when `key` changes, and every `seconds` while the page is visible. Old data stays until new arrives. */
export function useLoad<T>(key: string, fetchIt: () => Promise<T>, seconds = 0): Loaded<T> {
  const [found, setFound] = useState<{ key: string; data: T | null; error: unknown }>({ key, data: null, error: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let wanted = true;
    const load = () =>
      fetchIt().then(
        (data) => wanted && setFound({ key, data, error: null }),
        (error: unknown) => wanted && setFound((before) => ({ key, data: before.key === key ? before.data : null, error })),
      );
    void load();
    const timer = seconds ? setInterval(() => document.hidden || void load(), seconds * 1000) : undefined;
    return () => {
      wanted = false;
      clearInterval(timer);
    };
  }, [key, turn]);
  return {
    data: found.key === key ? found.data : null,
    error: found.key === key ? found.error : null,
    again: () => setTurn((before) => before + 1),
  };
}
