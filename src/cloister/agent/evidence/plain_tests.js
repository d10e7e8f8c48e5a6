'use strict';
// Runs a test file without its test runner: as an ordinary program, or inside the runner for comparison.
//
// The file's own functions (describe, test, expect, t) are replaced by small ones with the same meaning. What they do
// not know is `unknown`, never a failure. The job is in job.json beside this file; each result is a line of JSON.
const fs = require('fs');
const path = require('path');
const util = require('util');
const assert = require('assert');
const { createRequire } = require('module');

const write = fs.writeFileSync;
const strict = assert.strict;
const Async = (async () => {}).constructor;
const later = setTimeout;
let strange = false;

function unknown(name) {
  strange = true;
  throw new Error(`unknown: ${String(name)}`);
}

const missing = (known, name) =>
  new Proxy(known, { get: (all, key) => (key in all || typeof key === 'symbol' || key === 'then' ? all[key] : () => unknown(`${name}.${key}`)) });

const equal = (a, b) => util.isDeepStrictEqual(a, b);
const loose = (a) => JSON.stringify(a, (_, value) => (typeof value === 'bigint' ? `${value}n` : value));
const has = (a, key) => String(key).split('.').every((part) => a != null && part in Object(a) && ((a = a[part]), true));
const isSpecial = (b) => b && typeof b === 'object' && (b.$$typeof || Object.values(b).some((one) => one && one.$$typeof));

function thrown(run) {
  try {
    run();
  } catch (error) {
    return { error };
  }
  return null;
}

function fits(found, wanted) {
  if (!found) return false;
  const { error } = found;
  if (wanted === undefined) return true;
  if (wanted instanceof RegExp) return wanted.test(error && error.message);
  if (typeof wanted === 'string') return String(error && error.message).includes(wanted);
  if (typeof wanted === 'function') return error instanceof wanted || (error && error.name === wanted.name);
  return Boolean(error) && (wanted.message === undefined || error.message === wanted.message);
}

const matchers = {
  toBe: (a, b) => Object.is(a, b),
  toEqual: (a, b) => (isSpecial(b) ? unknown('asymmetric') : equal(a, b) || (typeof a === 'object' && loose(a) === loose(b))),
  toStrictEqual: (a, b) => (isSpecial(b) ? unknown('asymmetric') : equal(a, b)),
  toBeTruthy: (a) => Boolean(a),
  toBeFalsy: (a) => !a,
  toBeNull: (a) => a === null,
  toBeDefined: (a) => a !== undefined,
  toBeUndefined: (a) => a === undefined,
  toBeNaN: (a) => Number.isNaN(a),
  toBeGreaterThan: (a, b) => a > b,
  toBeGreaterThanOrEqual: (a, b) => a >= b,
  toBeLessThan: (a, b) => a < b,
  toBeLessThanOrEqual: (a, b) => a <= b,
  toBeCloseTo: (a, b, digits = 2) => a === b || Math.abs(a - b) < 10 ** -digits / 2,
  toBeInstanceOf: (a, b) => a instanceof b,
  toBeTypeOf: (a, b) => typeof a === b,
  toContain: (a, b) => (typeof a === 'string' ? a.includes(b) : [...a].includes(b)),
  toContainEqual: (a, b) => [...a].some((one) => equal(one, b)),
  toHaveLength: (a, b) => a.length === b,
  toHaveProperty: (a, key, ...value) => has(a, key) && (!value.length || equal(String(key).split('.').reduce((o, part) => o[part], a), value[0])),
  toMatch: (a, b) => (b instanceof RegExp ? b.test(a) : a.includes(b)),
  toThrow: (a, b) => fits(a && 'error' in Object(a) ? a : thrown(a), b),
};
matchers.toThrowError = matchers.toThrow;

function expecting(get, not) {
  const one = (name) => (...wanted) => {
    const right = (value) => {
      if (Boolean(matchers[name](value, ...wanted)) === not) strict.fail(`${name} ${util.inspect(value)} ${util.inspect(wanted)}`);
    };
    const value = get();
    return value instanceof Promise ? value.then(right) : right(value);
  };
  return new Proxy({}, {
    get(_, name) {
      if (name === 'not') return expecting(get, !not);
      if (name === 'resolves') return expecting(() => Promise.resolve(get()), not);
      if (name === 'rejects') return expecting(() => Promise.resolve(typeof get() === 'function' ? get()() : get()).then(() => strict.fail('resolved'), (error) => ({ error })), not);
      return name in matchers ? one(name) : unknown(name);
    },
  });
}

const expect = missing(Object.assign((value) => expecting(() => value, false), { assertions() {}, hasAssertions() {} }), 'expect');

function points(run) {
  const same = (a, b) => strict.deepStrictEqual(a, b);
  const raises = (f, ...more) => {
    const found = thrown(f);
    const wanted = more[0] && more[0].instanceOf ? more[0].instanceOf : typeof more[0] === 'string' ? undefined : more[0];
    strict.ok(fits(found, wanted), 'nothing fitting was thrown');
    return found.error;
  };
  const t = {
    ok: (a) => strict.ok(a), notOk: (a) => strict.ok(!a), true: (a) => strict.equal(a, true), false: (a) => strict.equal(a, false),
    equal: (a, b) => strict.equal(a, b), is: (a, b) => strict.equal(a, b), not: (a, b) => strict.notEqual(a, b), notEqual: (a, b) => strict.notEqual(a, b),
    same, deepEqual: same, notDeepEqual: (a, b) => strict.notDeepEqual(a, b), throws: raises, doesNotThrow: (f) => f(), notThrows: (f) => f(),
    match: (a, b) => strict.match(a, b), regex: (a, b) => strict.match(a, b), pass() {}, fail: (why) => strict.fail(why), error: (a) => strict.ok(!a),
    plan() {}, comment() {}, log() {}, diagnostic() {}, timeoutAfter() {}, teardown() {}, after() {}, test: run, end() { t.ended = true; },
  };
  Object.assign(t, { equals: t.equal, strictEqual: t.equal, assert: t.ok, truthy: t.ok, falsy: t.notOk, ifError: t.error });
  return missing(t, 't');
}

function framework() {
  const tests = [];
  const around = { before: [], beforeEach: [], afterEach: [], after: [] };
  let names = [];
  let each = [];
  const add = (name, ...rest) => {
    const body = rest.find((one) => typeof one === 'function');
    if (body) tests.push({ name: [...names, name].join(' > '), body, each, last: around });
    const chained = { timeout: () => chained, slow: () => chained, retries: () => chained };
    return chained;
  };
  const group = (name, ...rest) => {
    const outer = [names, each];
    [names, each] = [[...names, name], [...each]];
    rest.find((one) => typeof one === 'function').call({ timeout() {}, slow() {} });
    [names, each] = outer;
  };
  const table = (start) => (rows, ...more) =>
    more.length || !Array.isArray(rows) ? unknown('each') : (name, body) => rows.forEach((row, n) => start(`${name} ${n}`, () => body(...[].concat(row))));
  const dress = (start) => missing(Object.assign(start, { each: table(start), only: start, skip() {}, todo() {}, serial: start, concurrent: start }), 'test');
  const hook = (when) => (...given) => {
    const body = given.find((one) => typeof one === 'function');
    if (when === 'beforeEach') each.push(body);
    else around[when].push(body);
  };
  const it = dress(add);
  const describe = dress(group);
  const api = {
    describe, context: describe, suite: describe, it, test: it, specify: it, expect,
    before: hook('before'), beforeAll: hook('before'), setup: hook('beforeEach'), beforeEach: hook('beforeEach'),
    after: hook('after'), afterAll: hook('after'), afterEach: hook('afterEach'), teardown: hook('afterEach'),
    jest: missing({}, 'jest'), vi: missing({}, 'vi'),
  };
  return { tests, around, api, whole: Object.assign(it, api, { default: it }) };
}

const IMPORT = /^import\s+(?:([^'"\n;]{1,300}?)\s+from\s+)?(['"])([^'"\n]+)\2;?/gm;

function withoutImports(text) {
  return text.replace(IMPORT, (_, clause, quote, from) => {
    if (!clause) return `await __load('${from}');`;
    const all = clause.match(/\*\s+as\s+([\w$]+)/);
    const some = clause.match(/\{([^}]*)\}/);
    const first = clause.match(/^\s*([\w$]+)/);
    const parts = [first && first[1] !== 'type' && `default: ${first[1]}`, some && some[1].replace(/\bas\b/g, ':').replace(/(\w+)\s+:\s+/g, '$1: ')];
    return all ? `const ${all[1]} = await __load('${from}');` : `const { ${parts.filter(Boolean).join(', ')} } = await __load('${from}');`;
  }).replace(/^export\s+(?=const|function|async|class|let)/gm, '').replace(/import\.meta\.url/g, '__url');
}

async function run(job, tested) {
  if (job.bundle) job.text = fs.readFileSync(job.bundle, 'utf8');
  const own = createRequire(job.file);
  const made = framework();
  const shims = { tape: made.whole, 'node:test': made.whole, ava: made.whole, vitest: made.whole, '@jest/globals': made.api };
  const need = Object.assign((name) => shims[name] || own(name), { resolve: own.resolve, cache: own.cache });
  const load = async (name) => {
    if (shims[name]) return shims[name];
    const place = /^\.{0,2}\//.test(name) ? `file://${path.resolve(path.dirname(job.file), name)}` : /^(node:|assert|fs$|path$)/.test(name) ? name : own.resolve(name);
    return import(place);
  };
  const given = { require: need, module: { exports: {} }, exports: {}, __filename: job.file, __dirname: path.dirname(job.file), __load: load, __url: `file://${job.file}`, ...made.api };
  const pointed = /['"](?:tape|ava|node:test|test)['"]/.test(job.text);
  const results = [];
  const done = async (name, body) => {
    strange = false;
    let status = 'ok';
    let why = '';
    try {
      const limit = new Promise((_, no) => later(() => { strange = true; no(new Error('too slow')); }, 3000).unref());
      await Promise.race([body(), limit]);
    } catch (error) {
      status = 'failed';
      why = String(error && error.message);
    }
    results.push(JSON.stringify([name, strange ? 'unknown' : status, why.slice(0, 300)]));
    write(job.out, results.join('\n')); // the next test may never end
    return status === 'ok' && !strange;
  };
  const source = `{ ${withoutImports(job.text)}\n}\n//# sourceURL=${tested ? job.file : path.join(__dirname, 'program.js')}`;
  if (await done('', () => new Async(...Object.keys(given), source).apply({ timeout() {} }, Object.values(given)))) {
    for (const one of made.around.before) await done('before', async () => one.call({}));
    for (let n = 0; n < made.tests.length && n < 500; n += 1) {
      const { name, body, each } = made.tests[n];
      const t = points((inner, ...rest) => made.tests.push({ name: `${name} > ${inner}`, body: rest.pop(), each: [] }));
      await done(name, async () => {
        const self = { timeout() {}, slow() {} };
        for (const one of each) await one.call(self);
        if (body.length > 0 && !pointed) await new Promise((yes, no) => body.call(self, Object.assign((error) => (error ? no(error) : yes()), { fail: no })));
        else await body.call(self, t);
        for (const one of made.around.afterEach) await one.call(self);
      });
    }
  }
}

module.exports = run;
if (require.main === module) {
  const job = JSON.parse(fs.readFileSync(path.join(__dirname, 'job.json'), 'utf8'));
  const leave = process.exit.bind(process);
  run(job, false).then(() => leave(0), () => leave(1));
}
