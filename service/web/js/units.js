/** Numbers as text, always with their unit. */

const COUNT = new Intl.NumberFormat("en");
const SHORT = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const STEPS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** @param {number | null | undefined} n */
export function count(n) {
  return n === null || n === undefined ? "–" : COUNT.format(n);
}

/**
 * @param {number | null | undefined} n
 * @param {string} one
 * @param {string} [many]
 */
export function counted(n, one, many = `${one}s`) {
  return `${count(n)} ${n === 1 ? one : many}`;
}

/** @param {number | null | undefined} n */
export function bytes(n) {
  if (n === null || n === undefined) return "–";
  let step = 0;
  let value = n;
  while (Math.abs(value) >= 1024 && step < STEPS.length - 1) {
    value /= 1024;
    step += 1;
  }
  return `${step ? SHORT.format(value) : COUNT.format(value)} ${STEPS[step]}`;
}

/**
 * Messages a second; "–" where it is not known yet.
 * @param {number | null | undefined} n
 */
export function rate(n) {
  if (n === null || n === undefined) return "–";
  return `${n >= 100 ? COUNT.format(Math.round(n)) : SHORT.format(n)} msg/s`;
}

/** @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  const abs = Math.abs(ms);
  if (abs < 1000) return `${Math.round(ms)} ms`;
  if (abs < 60_000) return `${SHORT.format(ms / 1000)} s`;
  if (abs < 3_600_000) return `${SHORT.format(ms / 60_000)} min`;
  if (abs < 48 * 3_600_000) return `${SHORT.format(ms / 3_600_000)} h`;
  return `${SHORT.format(ms / 86_400_000)} d`;
}

/** @param {number} usd */
export function cost(usd) {
  if (usd === 0) return "0 USD";
  const digits = usd >= 1 ? 2 : Math.min(12, 1 - Math.floor(Math.log10(usd)));
  return `${usd.toFixed(digits)} USD`;
}
