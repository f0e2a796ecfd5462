// PouchDB as a peer: runs one scene, named by the first argument, against the database at the second.
// Prints one JSON value. Scenes only do what a program in a browser would do.
'use strict';

const PouchDB = require('pouchdb-core')
  .plugin(require('pouchdb-adapter-memory'))
  .plugin(require('pouchdb-adapter-http'))
  .plugin(require('pouchdb-mapreduce'))
  .plugin(require('pouchdb-replication'));
const { fetch } = require('pouchdb-fetch');

const [scene, url, ...rest] = process.argv.slice(2);
const WAIT_MS = 30000;
let made = 0;

function fresh() {
  made += 1;
  return new PouchDB(`local-${process.pid}-${made}`, { adapter: 'memory' });
}

function done(replication) {
  return new Promise((resolve, reject) => {
    const result = { denied: [] };
    replication.on('complete', (info) => resolve({
      ok: info.ok, read: info.docs_read, written: info.docs_written,
      failures: info.doc_write_failures, denied: result.denied.length,
    }));
    replication.on('denied', (one) => result.denied.push(one));
    replication.on('error', reject);
  });
}

// All leaves of all documents with bodies and attachments, in one order: what two peers must agree on.
// (PouchDB gives attachments that it is sent another revpos.)
async function picture(db) {
  const changes = await db.changes({ style: 'all_docs', since: 0 });
  const found = {};
  for (const row of changes.results) {
    const revs = row.changes.map((one) => one.rev);
    const leaves = await db.get(row.id, { open_revs: revs, revs: true });
    found[row.id] = {};
    for (const leaf of leaves) {
      const doc = leaf.ok;
      const path = doc._revisions;
      delete doc._revisions;
      for (const name of Object.keys(doc._attachments || {})) {
        const data = await db.getAttachment(row.id, name, { rev: doc._rev });
        const bytes = Buffer.isBuffer(data) ? data : Buffer.from(await data.arrayBuffer());
        const known = doc._attachments[name];
        doc._attachments[name] = {
          type: known.content_type, length: known.length,
          data: bytes.toString('base64'),
        };
      }
      found[row.id][doc._rev] = { doc, path };
    }
  }
  return found;
}

function sorted(value) {
  if (Array.isArray(value)) return value.map(sorted);
  if (value === null || typeof value !== 'object') return value;
  return Object.fromEntries(Object.keys(value).sort().map((k) => [k, sorted(value[k])]));
}

const same = (one, other) => JSON.stringify(sorted(one)) === JSON.stringify(sorted(other));

async function until(condition, what) {
  const end = Date.now() + WAIT_MS;
  for (;;) {
    if (await condition()) return;
    if (Date.now() > end) throw new Error(`waited too long for ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

// Plain documents, updates, deletions, conflicts, attachments of text and of bytes.
async function fill(db, count) {
  const docs = [];
  for (let n = 0; n < count; n += 1) docs.push({ _id: `doc-${n}`, n, text: `wert ü ${n}` });
  const first = await db.bulkDocs(docs);
  for (let n = 0; n < count; n += 3) {
    await db.put({ _id: `doc-${n}`, _rev: first[n].rev, n, again: true });
  }
  for (let n = 1; n < count; n += 5) {
    const present = await db.get(`doc-${n}`);
    await db.remove(present);
  }
  for (let n = 2; n < count; n += 7) {
    const leaf = (sig) => ({
      _id: `doc-${n}`, side: sig, _rev: `2-${sig}`,
      _revisions: { start: 2, ids: [sig, first[n].rev.split('-')[1]] },
    });
    await db.bulkDocs([leaf('aaaa'), leaf('ffff')], { new_edits: false });
  }
  const bytes = Buffer.from(Array.from({ length: 70000 }, (_, i) => (i * 7) % 256));
  const plain = await db.put({
    _id: 'with attachments', kind: 'attached',
    _attachments: {
      'text.txt': { content_type: 'text/plain', data: Buffer.from('Grüße').toString('base64') },
      'folder/bytes.bin': { content_type: 'application/octet-stream', data: bytes.toString('base64') },
    },
  });
  await db.putAttachment('with attachments', 'later', plain.rev, Buffer.from('later'), 'text/css');
  await db.put({ _id: 'id/with slash & more?', a: 1.5, b: [1, 2, { c: null }] });
}

const scenes = {
  async push() {
    const local = fresh();
    await fill(local, 60);
    const first = await done(local.replicate.to(url));
    const again = await done(local.replicate.to(url));
    const remote = new PouchDB(url);
    return { first, again, same: same(await picture(local), await picture(remote)) };
  },

  async pull() {
    const remote = new PouchDB(url);
    await fill(remote, 40);
    const local = fresh();
    const first = await done(local.replicate.from(url));
    const again = await done(local.replicate.from(url));
    await remote.put({ _id: 'one more' });
    const more = await done(local.replicate.from(url));
    return { first, again, more, same: same(await picture(local), await picture(remote)) };
  },

  // The second one may have another address of the same database.
  async live() {
    const [one, two] = [fresh(), fresh()];
    const syncs = [one.sync(url, { live: true }), two.sync(rest[0] || url, { live: true })];
    for (let n = 0; n < 20; n += 1) {
      await one.put({ _id: `one-${n}` });
      await two.put({ _id: `two-${n}` });
      await one.put({ _id: `both-${n}`, by: 'one' });
      await two.put({ _id: `both-${n}`, by: 'two' }).catch(() => null);
    }
    const remote = new PouchDB(url);
    const count = async (db) => (await db.info()).doc_count;
    await until(async () => await count(one) === 60 && await count(two) === 60, 'all documents');
    await until(async () => same(await picture(one), await picture(two)), 'two equal databases');
    const equal = same(await picture(one), await picture(remote));
    syncs.forEach((sync) => sync.cancel());
    return { same: equal };
  },

  async filtered() {
    const remote = new PouchDB(url);
    const docs = [];
    for (let n = 0; n < 30; n += 1) docs.push({ _id: `d${n}`, n, odd: n % 2 === 1 });
    await remote.bulkDocs(docs);
    const [named, chosen] = [fresh(), fresh()];
    await done(named.replicate.from(url, { doc_ids: ['d3', 'd7', 'none'] }));
    await done(chosen.replicate.from(url, { selector: { odd: true, n: { $lt: 10 } } }));
    const ids = async (db) => (await db.allDocs()).rows.map((row) => row.id);
    return { named: await ids(named), chosen: await ids(chosen) };
  },

  async conflicts() {
    const remote = new PouchDB(url);
    const base = await remote.put({ _id: 'c', n: 0 });
    const refused = await remote.put({ _id: 'c', n: 1 }).catch((error) => error.status);
    await remote.bulkDocs(
      ['x', 'y'].map((sig) => ({
        _id: 'c', sig, _rev: `2-${sig}`, _revisions: { start: 2, ids: [sig, base.rev.slice(2)] },
      })),
      { new_edits: false },
    );
    const seen = await remote.get('c', { conflicts: true });
    await remote.remove('c', '2-x');
    const after = await remote.get('c', { conflicts: true });
    return { refused, winner: seen._rev, conflicts: seen._conflicts, left: after._conflicts || [] };
  },

  async attachments() {
    const remote = new PouchDB(url);
    const put = await remote.putAttachment('a', 'x.png', Buffer.from('first'), 'image/png');
    const next = await remote.putAttachment('a', 'y', put.rev, Buffer.from('second'), 'text/plain');
    const whole = await remote.get('a', { attachments: true });
    await remote.removeAttachment('a', 'x.png', next.rev);
    const left = await remote.get('a');
    return {
      digests: Object.keys(whole._attachments).sort().map((n) => whole._attachments[n].digest),
      data: Object.keys(whole._attachments).sort().map((n) => whole._attachments[n].data),
      left: Object.keys(left._attachments),
    };
  },

  // What pouchdb-authentication does with users, by an administrator and by the user.
  async users() {
    const base = new URL('/_users', url).href;
    const by = (username, password) => new PouchDB(base, {
      auth: { username, password }, skip_setup: true,
    });
    const status = (promise) => promise.then(() => 200, (error) => error.status);
    const ada = by('ada', 'secret');
    const id = 'org.couchdb.user:bob';
    await ada.put({ _id: id, name: 'bob', type: 'user', roles: ['staff'], password: 'one' });
    const own = await by('bob', 'one').get(id);
    await by('bob', 'one').put({ ...own, password: 'two' });
    const bob = by('bob', 'two');
    const fresh_own = await bob.get(id);
    const seen = {
      roles: own.roles, shown: Object.keys(own).sort(),
      old_password: await status(by('bob', 'one').get(id)),
      other: await status(bob.get('org.couchdb.user:ada')),
      roles_refused: await status(bob.put({ ...fresh_own, roles: ['_admin'] })),
      stale: await status(ada.put({ ...own, roles: [] })),
      all: (await ada.allDocs()).rows.map((row) => row.id),
    };
    await ada.remove(await ada.get(id));
    return { ...seen, gone: await status(ada.get(id)), then: await status(bob.get(id)) };
  },

  // Steps of replication by the bearer of a token.
  async bearer(token) {
    const shown = (address, options) => {
      options.headers.set('Authorization', `Bearer ${token}`);
      return fetch(address, options);
    };
    const remote = new PouchDB(url, { fetch: shown, skip_setup: true });
    const local = fresh();
    await fill(local, 10);
    const first = await done(local.replicate.to(remote));
    const again = await done(fresh().replicate.from(remote));
    return { first, again, same: same(await picture(local), await picture(remote)) };
  },
};

scenes[scene](...rest).then(
  (result) => { process.stdout.write(JSON.stringify(result)); process.exit(0); },
  (error) => { console.error(error); process.exit(1); },
);
