// Runs inside the sandbox's JavaScript engine: holds the functions of one design document and
// calls them on whole batches. Document code shares the global object with nothing of ours: what
// this file uses is captured here, and its own entry points are taken off the global object. All
// that the language brings along is frozen before document code is compiled, so that nothing a
// document does changes what this file, or the next document, finds. Where there is a global
// `millstream_clock`, the functions may ask for the time and for random numbers.
(function (global) {
  "use strict";
  const parse = JSON.parse, stringify = JSON.stringify, freeze = Object.freeze;
  const isArray = Array.isArray, evaluate = global.eval, Text = String, keysOf = Object.keys;
  const TheTypeError = TypeError, define = Object.defineProperty, construct = Reflect.construct;
  const membersOf = Reflect.ownKeys, memberOf = Object.getOwnPropertyDescriptor;
  const prototypeOf = Object.getPrototypeOf, makeObject = Object.create;
  const hasOwn = Object.hasOwn, TheError = Error, apply = Reflect.apply;
  const maps = [], reduces = {};
  const Bytes = Uint8Array;
  const hasClock = hasOwn(global, "millstream_clock");
  delete global.millstream_clock;
  let root = null, spareBytes = 0;
  let rows = [], view = 0, at = 0, isOver = false;
  const ROWS_PER_DOCUMENT_MAX = 100000, ROWS_PER_CALL_MAX = 200000;

  function overflow() {
    return new TheTypeError(
      `more than ${ROWS_PER_DOCUMENT_MAX} rows of one document: emit fewer, or split the document`);
  }

  // Rows must be a function of the document alone: no clock, no dice, no garbage collector.
  const TheDate = Date;
  function noClock() {
    throw new TheTypeError("a view function has no clock: give Date an argument");
  }
  function SafeDate(...parts) {
    if (!new.target || parts.length === 0) noClock();
    return construct(TheDate, parts, new.target);
  }
  SafeDate.prototype = TheDate.prototype;
  SafeDate.parse = TheDate.parse;
  SafeDate.UTC = TheDate.UTC;
  SafeDate.now = noClock;
  if (!hasClock) {
    TheDate.prototype.constructor = SafeDate;
    global.Date = SafeDate;
    Math.random = function () {
      throw new TheTypeError("a view function has no random numbers");
    };
  }
  for (const name of ["performance", "WeakRef", "FinalizationRegistry", "Atomics",
    "SharedArrayBuffer", "queueMicrotask", "navigator", "gc"]) {
    delete global[name];
  }

  global.emit = function (key, value) {
    if (rows.length >= ROWS_PER_DOCUMENT_MAX) {
      isOver = true;
      throw overflow();
    }
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

  // The engine throws null where no memory is left for an error object. If much is free again now,
  // the function wanted too much (or threw null itself); if not, what earlier calls have kept is
  // to blame as well, and the call has to fail as a whole.
  function describeNull() {
    new Bytes(spareBytes);
    return "null was thrown: by the function, or because memory is exhausted";
  }

  function describe(error) {
    if (error === null) return describeNull();
    let text;
    try {
      text = Text(error);
    } catch {
      text = "an error without a text";
    }
    if (text === "InternalError: out of memory") throw error;
    return text.slice(0, 200);
  }

  // A member of a frozen prototype cannot be assigned on the objects below it, silently so; as an
  // accessor it can, and `error.name = "x"` or `counts["constructor"] = 1` mean what they say.
  function letAssign(prototype) {
    for (const name of membersOf(prototype)) {
      const member = memberOf(prototype, name);
      if (!member.configurable || !("value" in member)) continue;
      const inherited = member.value;
      define(prototype, name, {
        get() { return inherited; },
        set(value) {
          if (this === prototype) throw new TheTypeError("built-in objects are frozen");
          define(this, name, { value, writable: true, enumerable: true, configurable: true });
        },
      });
    }
  }

  function freezeBuiltIns() {
    const known = new Set([global]), open = [
      function* () {}, async function () {}, async function* () {}, [].values(), "".matchAll(/./g),
      new Map().keys(), new Set().keys(), ""[Symbol.iterator](),
    ];
    letAssign(Object.prototype);
    for (const name of membersOf(global)) {
      const member = memberOf(global, name);
      if ("value" in member) define(global, name, { writable: false, configurable: false });
      open.push(member.value);
      if (name.endsWith?.("Error")) letAssign(member.value.prototype);
    }
    while (open.length) {
      const object = open.pop();
      const isObject = typeof object === "object" && object !== null;
      if (!(isObject || typeof object === "function") || known.has(object)) continue;
      known.add(object);
      freeze(object);
      open.push(prototypeOf(object));
      for (const name of membersOf(object)) {
        const member = memberOf(object, name);
        open.push(member.value, member.get, member.set);
      }
    }
  }
  freezeBuiltIns();

  function compile(source) {
    const compiled = evaluate("(" + source + "\n)");
    if (typeof compiled !== "function") throw new TheTypeError("the source is not a function");
    return compiled;
  }

  // CommonJS modules below `root`: maps call require("views/lib/a/b"), modules also require by
  // paths relative to their own. A module runs once, when it is first asked for; who asks for one
  // that is still running gets what it has exported so far.
  const modules = makeObject(null);

  function requireFrom(folder) {
    return function require(path) {
      const names = placeOf(folder, Text(path)), id = names.join("/");
      if (id in modules) return modules[id].exports;
      const source = memberAt(names);
      if (typeof source !== "string") throw new TheError("require: there is no module " + id);
      const own = { id, exports: {} };
      modules[id] = own;
      try {
        const run = evaluate("(function (exports, module, require) {" + source + "\n})");
        run(own.exports, own, requireFrom(names.slice(0, -1)));
      } catch (error) {
        delete modules[id];
        throw error;
      }
      return own.exports;
    };
  }

  function memberAt(names) {
    let member = root;
    for (const name of names) {
      const isObject = typeof member === "object" && member !== null;
      member = isObject && hasOwn(member, name) ? member[name] : undefined;
    }
    return member;
  }

  function placeOf(folder, path) {
    const parts = path.split("/"), isRelative = parts[0] === "." || parts[0] === "..";
    const names = isRelative ? [...folder] : [];
    for (const part of parts) {
      if (part === "..") names.pop();
      else if (part !== "." && part !== "") names.push(part);
    }
    return names;
  }

  global.millstream_load = function (kind, number, source) {
    if (kind === "memory") {
      spareBytes = number;
    } else if (kind === "lib" || kind === "design") {
      root = kind === "lib" ? { views: { lib: parse(source) } } : parse(source);
      deepFreeze(root);
      define(global, "require", { value: requireFrom([]) });
    } else if (kind === "map") maps[number] = compile(source);
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
    let total = 0;
    for (at = 0; at < expected; at++) {
      const doc = documents[at];
      if (isFlat) freeze(doc); else deepFreeze(doc);
      rows = [];
      for (view = 0; view < maps.length; view++) {
        const before = rows.length;
        try {
          isOver = false;
          (0, maps[view])(doc);
          if (isOver) throw overflow();
        } catch (error) {
          rows.length = before;
          errors[errors.length] = [at, view, describe(error)];
        }
      }
      total += rows.length;
      if (total > ROWS_PER_CALL_MAX && expected > 1) return "";  // fewer documents are asked for
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
          if (own.length) good.push(stringify(own).slice(1, -1));
        } catch (error) {
          errors.push([at, number, describe(error)]);
        }
      }
      return ["[", good.join(","), "]"].join("");
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

  // The other functions of a whole design document, which they see as `this`; each is compiled
  // when it is first called, so that one that does not compile costs nobody but its callers.
  const functions = makeObject(null);

  function functionAt(path) {
    const id = stringify(path);
    if (!(id in functions)) functions[id] = compile(Text(memberAt(path)));
    return functions[id];
  }

  const calls = {
    compile() {
      return true;
    },
    validate(run, item, shared) {
      apply(run, root, [item[0], item[1], shared[0], shared[1]]);
      return true;
    },
    filter(run, document, request) {
      return !!apply(run, root, [document, request]);
    },
    view(run, document) {
      rows = [];
      run(document);
      return rows.length > 0;
    },
    update(run, item) {
      const found = apply(run, root, [item[0], item[1]]);
      if (!isArray(found)) throw new TheTypeError("an update function returns [document, answer]");
      const answer = typeof found[1] === "string" ? { body: found[1] } : found[1];
      if (typeof answer !== "object" || answer === null) {
        throw new TheTypeError("the answer of an update function is a string or an object");
      }
      return [found[0] === undefined ? null : found[0], answer];
    },
  };
  freeze(calls);

  // What was thrown, as an object: {thrown} if it was no error but says something itself.
  function failure(error) {
    if (typeof error === "object" && error !== null && !(error instanceof TheError)) {
      try {
        return stringify({ thrown: error });
      } catch {
        return stringify({ error: "Object", reason: describe(error) });
      }
    }
    const reason = describe(error);
    const name = error instanceof TheError ? Text(error.name).slice(0, 100) : "Error";
    return stringify({ error: name, reason });
  }

  // text: [kind, path of the function, what all calls get, [what each gets, ...]]; returns a list
  // of what `calls` says, or of failures.
  global.millstream_call = function (text) {
    const order = parse(text), kind = order[0], shared = order[2], items = order[3], results = [];
    if (typeof shared === "object" && shared !== null) deepFreeze(shared);
    let run;
    at = -1;
    try {
      run = functionAt(order[1]);
    } catch (error) {
      const lost = stringify({ error: "compile", reason: describe(error) });
      return ["[", items.map(() => lost).join(","), "]"].join("");
    }
    for (at = 0; at < items.length; at++) {
      try {
        results[at] = stringify(calls[kind](run, items[at], shared));
      } catch (error) {
        results[at] = failure(error);
      }
    }
    return ["[", results.join(","), "]"].join("");
  };
})(globalThis);
