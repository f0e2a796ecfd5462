// Runs inside the sandbox's JavaScript engine: holds the functions of one design document and
// calls them on whole batches. Document code shares the global object with nothing of ours: what
// this file uses is captured here, and its own entry points are taken off the global object.
(function (global) {
  "use strict";
  const parse = JSON.parse, stringify = JSON.stringify, freeze = Object.freeze;
  const isArray = Array.isArray, evaluate = global.eval, Text = String, keysOf = Object.keys;
  const TheError = Error, TheTypeError = TypeError;
  const maps = [], reduces = {};
  let rows = [], view = 0, at = 0;

  // Rows must be a function of the document alone: no clock, no dice, no garbage collector.
  const TheDate = Date;
  function noClock() {
    throw new TheTypeError("a view function has no clock: give Date an argument");
  }
  function SafeDate(...parts) {
    if (!new.target || parts.length === 0) noClock();
    return Reflect.construct(TheDate, parts, new.target);
  }
  SafeDate.prototype = TheDate.prototype;
  SafeDate.parse = TheDate.parse;
  SafeDate.UTC = TheDate.UTC;
  SafeDate.now = noClock;
  TheDate.prototype.constructor = SafeDate;
  global.Date = SafeDate;
  Math.random = function () {
    throw new TheTypeError("a view function has no random numbers");
  };
  for (const name of ["performance", "WeakRef", "FinalizationRegistry", "Atomics",
    "SharedArrayBuffer", "queueMicrotask", "navigator", "gc"]) {
    delete global[name];
  }

  global.emit = function (key, value) {
    rows[rows.length] = [view, key, value];
  };
  global.log = function () {};
  global.isArray = isArray;
  global.toJSON = stringify;
  global.sum = function (values) {
    let total = 0;
    for (let i = 0; i < values.length; i++) total += values[i];
    return total;
  };

  function deepFreeze(object) {
    freeze(object);
    for (const name of keysOf(object)) {
      const member = object[name];
      if (typeof member === "object" && member !== null) deepFreeze(member);
    }
  }

  function describe(error) {
    let text;
    try {
      text = Text(error);
    } catch {
      text = "an error without a text";
    }
    if (text === "InternalError: out of memory") throw error;
    return text.slice(0, 200);
  }

  function compile(source) {
    const compiled = evaluate("(" + source + "\n)");
    if (typeof compiled !== "function") throw new TheTypeError("the source is not a function");
    return compiled;
  }

  global.millstream_load = function (kind, number, source) {
    if (kind === "map") maps[number] = compile(source);
    else reduces[number] = compile(source);
  };

  global.millstream_position = function () {
    return at;
  };

  // Returns [rows of each document, [[document, view, message], ...]] as JSON, or "" if the text
  // does not hold the expected number of documents.
  global.millstream_map = function (text, expected, isFlat) {
    const documents = parse(text), errors = [];
    if (documents.length !== expected) return "";
    // Joined, never added up: the binding does not know the engine's unfinished strings.
    const texts = [];
    for (at = 0; at < expected; at++) {
      const doc = documents[at];
      if (isFlat) freeze(doc); else deepFreeze(doc);
      rows = [];
      for (view = 0; view < maps.length; view++) {
        const before = rows.length;
        try {
          (0, maps[view])(doc);
        } catch (error) {
          rows.length = before;
          errors[errors.length] = [at, view, describe(error)];
        }
      }
      texts[at] = textOf(rows, errors);
    }
    return ["[[", texts.join(","), "],", stringify(errors), "]"].join("");
  };

  function textOf(all, errors) {
    try {
      return stringify(all);
    } catch {
      // A key or value that is no JSON (a cycle, a BigInt): only its view's rows are lost.
      const good = [];
      for (let number = 0; number < maps.length; number++) {
        const own = all.filter((row) => row[0] === number);
        try {
          stringify(own);
          for (const row of own) good[good.length] = row;
        } catch (error) {
          errors[errors.length] = [at, number, describe(error)];
        }
      }
      return stringify(good);
    }
  }

  // calls: [[keys or null, values, rereduce], ...]; returns [[value] or [null, message], ...].
  global.millstream_reduce = function (number, text) {
    const calls = parse(text), results = [];
    for (at = 0; at < calls.length; at++) {
      try {
        const value = (0, reduces[number])(calls[at][0], calls[at][1], calls[at][2]);
        results[at] = stringify([value]);
      } catch (error) {
        results[at] = stringify([null, describe(error)]);
      }
    }
    return ["[", results.join(","), "]"].join("");
  };
})(globalThis);
