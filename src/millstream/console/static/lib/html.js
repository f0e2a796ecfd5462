// @ts-check
/**
 * Preact and htm as one: `html` makes elements from template strings, without a build step.
 * All other files of the console import from here, never from `vendor/`.
 */
import { Fragment, h, render } from "../vendor/preact.js";
import * as hooks from "../vendor/preact-hooks.js";
import htm from "../vendor/htm.js";

export {
  useCallback, useEffect, useErrorBoundary, useId, useLayoutEffect, useMemo, useRef,
} from "../vendor/preact-hooks.js";
export { Fragment, h, render };

/** @type {<T>(first: T | (() => T)) => [T, (next: T | ((old: T) => T)) => void]} */
export const useState = hooks.useState;

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(h);
