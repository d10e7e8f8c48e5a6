// Something that is fetched for a page: what it is, or why it is not there.

import { useEffect, useState } from "preact/hooks";

const PAUSE = 100;

export type Loaded<T> = { data: T | null; error: unknown; again: () => void };

/**
 * Fetches when `key` changes, and every `seconds` while the page is visible. Old data stays until new arrives, if it is
 * of the same thing: by default that is the key. What is under way is given up when the page goes.
 */
export function useLoad<T>(key: string, fetchIt: (signal: AbortSignal) => Promise<T>, seconds = 0, of = key): Loaded<T> {
  const [found, setFound] = useState<{ of: string; data: T | null; error: unknown }>({ of, data: null, error: null });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const leaving = new AbortController();
    const load = () =>
      fetchIt(leaving.signal).then(
        (data) => leaving.signal.aborted || setFound({ of, data, error: null }),
        (error: unknown) => leaving.signal.aborted || setFound((before) => ({ of, data: before.of === of ? before.data : null, error })),
      );
    // Where there is something to see, quick changes are one request.
    const begun = setTimeout(() => void load(), found.data !== null && found.of === of ? PAUSE : 0);
    const timer = seconds ? setInterval(() => document.hidden || void load(), seconds * 1000) : undefined;
    return () => {
      leaving.abort();
      clearTimeout(begun);
      clearInterval(timer);
    };
  }, [key, turn]);
  return {
    data: found.of === of ? found.data : null,
    error: found.of === of ? found.error : null,
    again: () => setTurn((before) => before + 1),
  };
}
