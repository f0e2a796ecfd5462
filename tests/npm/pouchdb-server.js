// PouchDB's own server, in memory: the peer of the benchmarks. Prints its port once it listens.
'use strict';

const PouchDB = require('pouchdb-core')
  .plugin(require('pouchdb-adapter-memory'))
  .plugin(require('pouchdb-adapter-http'))
  .plugin(require('pouchdb-mapreduce'))
  .plugin(require('pouchdb-replication'))
  .defaults({ adapter: 'memory' });

const app = require('express')();
const settings = {
  inMemoryConfig: true, mode: 'minimumForPouchDB', overrideMode: { include: ['routes/replicate'] },
};
app.use('/', require('express-pouchdb')(PouchDB, settings));
const server = app.listen(0, '127.0.0.1', () => console.log(server.address().port));
