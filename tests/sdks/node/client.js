// Couchbase's SDK for Node, driven by tests/sdks: a command per line in JSON, an answer per line.
'use strict'

const couchbase = require('couchbase')
const readline = require('node:readline')

const KINDS = [
  ['DocumentNotFoundError', 'document_not_found'],
  ['DocumentExistsError', 'document_exists'],
  ['CasMismatchError', 'cas_mismatch'],
  ['AuthenticationFailureError', 'authentication'],
  ['BucketNotFoundError', 'bucket_not_found'],
  ['BucketExistsError', 'bucket_exists'],
  ['BucketNotFlushableError', 'not_flushable'],
  ['UserNotFoundError', 'user_not_found'],
  ['GroupNotFoundError', 'group_not_found'],
  ['FeatureNotAvailableError', 'not_available'],
  ['ServiceNotAvailableError', 'not_available'],
  ['UnsupportedOperationError', 'not_available'],
  ['CollectionNotFoundError', 'collection_not_found'],
  ['ScopeNotFoundError', 'scope_not_found'],
  ['DocumentUnretrievableError', 'unretrievable'],
  ['DurabilityAmbiguousError', 'durability_ambiguous'],
  ['TemporaryFailureError', 'temporary'],
  ['TimeoutError', 'timeout'],
]

let cluster, bucket, documents

function failed(error) {
  const found = KINDS.find(([name]) => error instanceof couchbase[name])
  return { error: found ? found[1] : 'other', text: `${error.name}: ${error.message}` }
}

function services(report) {
  const found = {}
  for (const [name, endpoints] of Object.entries(report.services)) {
    found[name] = endpoints.map((one) =>
      one.state === couchbase.PingState.Ok || one.state === 'ok' ? 'ok' : String(one.error)
    )
  }
  return { services: found }
}

const written = (result) => ({ cas: result.cas.toString() })
const read = (result) => ({ value: result.content, cas: result.cas.toString() })

const COMMANDS = {
  async connect(c) {
    const limit = c.limit_s * 1000
    cluster = await couchbase.connect(c.connection, {
      username: c.user,
      password: c.password,
      timeouts: {
        bootstrapTimeout: limit, connectTimeout: limit, kvTimeout: limit,
        kvDurableTimeout: limit, managementTimeout: limit, queryTimeout: limit,
      },
    })
    await cluster.waitUntilReady(limit)
  },
  async open(c) {
    bucket = cluster.bucket(c.bucket)
    documents = bucket.defaultCollection()
    await bucket.waitUntilReady(c.limit_s * 1000)
  },
  ping: async () => services(await bucket.ping()),
  ping_cluster: async () => services(await cluster.ping()),
  close: async () => cluster.close(),

  upsert: async (c) => written(await documents.upsert(c.key, c.value, options(c))),
  insert: async (c) => written(await documents.insert(c.key, c.value)),
  replace: async (c) => written(await documents.replace(c.key, c.value, options(c))),
  remove: async (c) => written(await documents.remove(c.key, options(c))),
  touch: async (c) => written(await documents.touch(c.key, c.expiry_s)),
  get: async (c) => read(await documents.get(c.key)),
  get_any_replica: async (c) => read(await documents.getAnyReplica(c.key)),
  get_all_replicas: async (c) => ({
    replicas: (await documents.getAllReplicas(c.key)).map((one) => one.isReplica),
  }),
  exists: async (c) => ({ exists: (await documents.exists(c.key)).exists }),
  look_inside: async (c) => nothing(documents.lookupIn(c.key, [couchbase.LookupInSpec.get('n')])),
  change_inside: async (c) =>
    nothing(documents.mutateIn(c.key, [couchbase.MutateInSpec.upsert('n', 1)])),
  get_in_collection: async (c) => nothing(bucket.scope('s').collection('c').get(c.key)),

  buckets: async () => ({
    names: (await cluster.buckets().getAllBuckets()).map((one) => one.name),
  }),
  get_bucket: async (c) => nothing(cluster.buckets().getBucket(c.name)),
  create_bucket: async (c) =>
    nothing(cluster.buckets().createBucket({ name: c.name, ramQuotaMB: 100 })),
  drop_bucket: async (c) => nothing(cluster.buckets().dropBucket(c.name)),
  flush_bucket: async (c) => nothing(cluster.buckets().flushBucket(c.name)),
  scopes: async () => nothing(bucket.collections().getAllScopes()),
  create_scope: async (c) => nothing(bucket.collections().createScope(c.name)),
  query: async () => nothing(cluster.query('SELECT 1')),

  async users() {
    const found = {}
    for (const one of await cluster.users().getAllUsers()) {
      found[one.username] = one.roles.map((role) => `${role.name}:${role.bucket || ''}`)
    }
    return { users: found }
  },
  get_user: async (c) => nothing(cluster.users().getUser(c.name)),
  roles: async () => ({ names: (await cluster.users().getRoles()).map((one) => one.name) }),
  upsert_user: async (c) =>
    nothing(cluster.users().upsertUser({ username: c.name, password: c.password, roles: ['admin'] })),
  drop_user: async (c) => nothing(cluster.users().dropUser(c.name)),
  groups: async () => nothing(cluster.users().getAllGroups()),
}

function options(c) {
  const found = {}
  if (c.cas) found.cas = c.cas
  if (c.expiry_s) found.expiry = c.expiry_s
  if (c.limit_s) found.timeout = c.limit_s * 1000
  if (c.majority) found.durabilityLevel = couchbase.DurabilityLevel.Majority
  return found
}

async function nothing(promise) {
  await promise
}

async function main() {
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const command = JSON.parse(line)
    let answer
    try {
      answer = (await COMMANDS[command.do](command)) || {}
    } catch (error) {
      answer = failed(error)
    }
    process.stdout.write(JSON.stringify(answer) + '\n')
  }
  process.exit(0)
}

main()
