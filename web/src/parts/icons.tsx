// A small set of icons, drawn as paths: 16 units square, in the colour of the text.

const PATHS = {
  runs: "M2 4h2M2 8h2M2 12h2M6 4h8M6 8h8M6 12h8",
  plus: "M8 3v10M3 8h10",
  box: "M8 1.8 14 5v6l-6 3.2L2 11V5zM2 5l6 3.2L14 5M8 8.2v6",
  layers: "M8 2 14 5 8 8 2 5zM2 8l6 3 6-3M2 11l6 3 6-3",
  shield: "M8 1.8l5 2v4c0 3.4-2.2 5.4-5 6.4-2.8-1-5-3-5-6.4v-4z",
  list: "M3 3h10v10H3zM5.500 6h5M5.500 8.500h5M5.500 11h3",
  wallet: "M2 5h12v8H2zM2 5l9-2.500V5M10.500 9H12",
  chip: "M4.500 4.500h7v7h-7zM6 2v2M10 2v2M6 12v2M10 12v2M2 6h2M2 10h2M12 6h2M12 10h2",
  machine: "M2 3h12v7H2zM6 13h4M8 10v3",
  people: "M6 2.500a2.500 2.500 0 1 1 0 5 2.500 2.500 0 0 1 0-5zM1.500 13.500c0-3 2-4.500 4.500-4.500s4.500 1.500 4.500 4.500M10.500 3a2.300 2.300 0 0 1 0 4.500M12 9.300c1.600.7 2.500 2.200 2.500 4.200",
  link: "M6.500 9.500 9.500 6.500M7 4.500l1.500-1.500a3 3 0 0 1 4.500 4.500L11.500 9M9 11.500 7.500 13A3 3 0 0 1 3 8.500L4.500 7",
  search: "M7 2.500a4.500 4.500 0 1 1 0 9 4.500 4.500 0 0 1 0-9zM10.400 10.400 14 14",
  chevron: "M6 3.500 10.500 8 6 12.500",
  check: "M3 8.500 6.500 12 13 4.500",
  cross: "M4 4l8 8M12 4l-8 8",
  question: "M5.500 6a2.500 2.500 0 1 1 3.600 2.200C8.300 8.700 8 9 8 10M8 12.400v.2",
  dot: "M8 5.500a2.500 2.500 0 1 1 0 5 2.500 2.500 0 0 1 0-5z",
  pause: "M5.500 4v8M10.500 4v8",
  stop: "M4 4h8v8H4z",
  clock: "M8 2.500a5.500 5.500 0 1 1 0 11 5.500 5.500 0 0 1 0-11zM8 5v3l2 1.500",
  terminal: "M2 3h12v10H2zM4.500 6l2 2-2 2M8 10h3.500",
  file: "M4 2h5l3 3v9H4zM9 2v3h3",
  edit: "M3 13l.6-2.800L11 2.800 13.200 5 5.800 12.400z",
  fork: "M4.500 2.500v11M4.500 9c4 0 7-1 7-4.500M11.500 2v2.500",
  back: "M6 4 2.500 7.500 6 11M2.500 7.500H10a3.500 3.500 0 0 1 0 7",
  copy: "M5.500 5.500h8v8h-8zM10.500 5.500v-3h-8v8h3",
  menu: "M2 4h12M2 8h12M2 12h12",
  say: "M2 3h12v8H7l-3 3v-3H2z",
  plan: "M3 4l1 1 2-2M3 8.500l1 1 2-2M3 13l1 1 2-2M8 4h6M8 8.500h6M8 13h6",
  flag: "M4 14V2.500h8L10 5.500l2 3H4",
  globe: "M8 2a6 6 0 1 1 0 12A6 6 0 0 1 8 2zM2 8h12M8 2c4 4 4 8 0 12M8 2c-4 4-4 8 0 12",
  warn: "M8 2 14.500 13.500h-13zM8 6.500v3M8 11.500v.2",
  clip: "M13 7.500 7.500 13a3.300 3.300 0 0 1-4.700-4.700L8.600 2.500a2.200 2.200 0 0 1 3.100 3.100L6 11.300a1.100 1.100 0 0 1-1.600-1.600L9.500 4.700",
  moon: "M13 9.500A5.500 5.500 0 0 1 6.500 3 5.500 5.500 0 1 0 13 9.500z",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, class: className }: { name: IconName; class?: string }) {
  return (
    <svg class={`icon ${className ?? ""}`} viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
