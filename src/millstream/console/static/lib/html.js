// @ts-check
/**
 * Preact and htm as one: `html` makes elements from template strings, without a build step.
 * All other files of the console import from here, never from `vendor/`.
 */
import { Fragment, h, render } from "../vendor/preact.js";
import htm from "../vendor/htm.js";

export {
  useCallback, useEffect, useErrorBoundary, useId, useLayoutEffect, useMemo, useRef, useState,
} from "../vendor/preact-hooks.js";
export { Fragment, h, render };

/** @type {(strings: TemplateStringsArray, ...values: any[]) => any} */
export const html = htm.bind(h);
