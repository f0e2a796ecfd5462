// Couchbase's SDK for Rust, driven by tests/sdks: a command per line in JSON, an answer per line.

use std::io::{BufRead, Write};
use std::time::Duration;

use couchbase::authenticator::PasswordAuthenticator;
use couchbase::bucket::Bucket;
use couchbase::cluster::Cluster;
use couchbase::collection::Collection;
use couchbase::durability_level::DurabilityLevel;
use couchbase::error::{Error, ErrorKind};
use couchbase::get_replica_strategy::{GetReplicaStrategy, ReplicaIndex};
use couchbase::management::buckets::bucket_settings::BucketSettings;
use couchbase::management::users::user::{Role, User};
use couchbase::options::cluster_options::ClusterOptions;
use couchbase::options::kv_options::{RemoveOptions, ReplaceOptions, UpsertOptions};
use couchbase::results::diagnostics::{PingReport, PingState};
use couchbase::results::kv_results::MutationResult;
use couchbase::service_type::ServiceType;
use couchbase::subdoc::lookup_in_specs::LookupInSpec;
use couchbase::subdoc::mutate_in_specs::MutateInSpec;
use serde_json::{json, Map, Value};

type Answer = Result<Value, Error>;

#[derive(Default)]
struct Client {
    cluster: Option<Cluster>,
    bucket: Option<Bucket>,
    documents: Option<Collection>,
}

fn kind(error: &Error) -> &'static str {
    match error.kind() {
        ErrorKind::DocumentNotFound => "document_not_found",
        ErrorKind::DocumentNotFoundOnReplica => "document_not_found",
        ErrorKind::ReplicaIndexOutOfBounds => "unretrievable",
        ErrorKind::ReplicaIndexCurrentlyUnavailable => "unretrievable",
        ErrorKind::DocumentExists => "document_exists",
        ErrorKind::CasMismatch => "cas_mismatch",
        ErrorKind::AuthenticationFailure => "authentication",
        ErrorKind::BucketNotFound => "bucket_not_found",
        ErrorKind::BucketExists => "bucket_exists",
        ErrorKind::BucketNotFlushable => "not_flushable",
        ErrorKind::UserNotFound => "user_not_found",
        ErrorKind::GroupNotFound => "group_not_found",
        ErrorKind::FeatureNotAvailable(_) => "not_available",
        ErrorKind::ServiceNotAvailable(_) => "not_available",
        ErrorKind::UnsupportedOperation => "not_available",
        ErrorKind::CollectionNotFound => "collection_not_found",
        ErrorKind::ScopeNotFound => "scope_not_found",
        ErrorKind::DurabilityAmbiguous => "durability_ambiguous",
        ErrorKind::TemporaryFailure => "temporary",
        ErrorKind::RequestCanceled => "cancelled",
        _ => "other",
    }
}

fn text<'a>(command: &'a Value, name: &str) -> &'a str {
    command[name].as_str().unwrap_or("")
}

fn cas(command: &Value) -> Option<u64> {
    command["cas"].as_str().and_then(|word| word.parse().ok())
}

fn is_durable(command: &Value) -> bool {
    command["majority"].as_bool().unwrap_or(false)
}

fn expiry(command: &Value) -> Option<Duration> {
    command["expiry_s"].as_u64().map(Duration::from_secs)
}

fn written(result: MutationResult) -> Value {
    json!({"cas": result.cas().to_string()})
}

fn services(report: PingReport) -> Value {
    let mut found = Map::new();
    for (service, endpoints) in report.services {
        let name = match service {
            ServiceType::KV => "kv".to_string(),
            ServiceType::MGMT => "mgmt".to_string(),
            other => format!("{other}"),
        };
        let states: Vec<String> = endpoints
            .iter()
            .map(|one| match one.state {
                PingState::Ok => "ok".to_string(),
                _ => format!("{:?}", one.error),
            })
            .collect();
        found.insert(name, json!(states));
    }
    json!({"services": found})
}

impl Client {
    fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("connect first")
    }

    fn bucket(&self) -> &Bucket {
        self.bucket.as_ref().expect("open first")
    }

    fn documents(&self) -> &Collection {
        self.documents.as_ref().expect("open first")
    }

    async fn perform(&mut self, c: &Value) -> Answer {
        match text(c, "do") {
            "connect" => {
                let who = PasswordAuthenticator::new(text(c, "user"), text(c, "password"));
                let options = ClusterOptions::new(who.into());
                let cluster = Cluster::connect(text(c, "connection"), options).await?;
                cluster.wait_until_ready(None).await?;
                self.cluster = Some(cluster);
                Ok(json!({}))
            }
            "open" => {
                let bucket = self.cluster().bucket(text(c, "bucket"));
                self.documents = Some(bucket.default_collection());
                self.bucket = Some(bucket);
                self.bucket().wait_until_ready(None).await?;
                Ok(json!({}))
            }
            "ping" => Ok(services(self.bucket().ping(None).await?)),
            "ping_cluster" => Ok(services(self.cluster().ping(None).await?)),
            "close" => {
                *self = Client::default();
                Ok(json!({}))
            }
            "upsert" | "insert" | "replace" | "remove" | "touch" => self.write(c).await,
            "get" | "get_any_replica" | "get_all_replicas" | "exists" | "look_inside"
            | "change_inside" | "get_in_collection" => self.read(c).await,
            "users" | "get_user" | "roles" | "upsert_user" | "drop_user" | "groups" => {
                self.manage_users(c).await
            }
            _ => self.manage(c).await,
        }
    }

    async fn write(&self, c: &Value) -> Answer {
        let (documents, key) = (self.documents(), text(c, "key"));
        match text(c, "do") {
            "upsert" => {
                let mut options = UpsertOptions::new();
                if is_durable(c) {
                    options = options.durability_level(DurabilityLevel::MAJORITY);
                }
                if let Some(expiry) = expiry(c) {
                    options = options.expiry(expiry);
                }
                Ok(written(documents.upsert(key, &c["value"], options).await?))
            }
            "insert" => Ok(written(documents.insert(key, &c["value"], None).await?)),
            "replace" => {
                let mut options = ReplaceOptions::new();
                if is_durable(c) {
                    options = options.durability_level(DurabilityLevel::MAJORITY);
                }
                if let Some(cas) = cas(c) {
                    options = options.cas(cas);
                }
                Ok(written(documents.replace(key, &c["value"], options).await?))
            }
            "remove" => {
                let mut options = RemoveOptions::new();
                if is_durable(c) {
                    options = options.durability_level(DurabilityLevel::MAJORITY);
                }
                if let Some(cas) = cas(c) {
                    options = options.cas(cas);
                }
                Ok(written(documents.remove(key, options).await?))
            }
            _ => {
                let done = documents.touch(key, expiry(c).unwrap_or_default(), None).await?;
                Ok(json!({"cas": done.cas().to_string()}))
            }
        }
    }

    async fn read(&self, c: &Value) -> Answer {
        let (documents, key) = (self.documents(), text(c, "key"));
        match text(c, "do") {
            "get" => {
                let found = documents.get(key, None).await?;
                let value: Value = found.content_as()?;
                Ok(json!({"value": value, "cas": found.cas().to_string()}))
            }
            // This SDK has no read of any replica, but of a given one.
            "get_any_replica" => {
                let first = GetReplicaStrategy::from_index(ReplicaIndex::First, None);
                let found = documents.get_replica(key, first, None).await?;
                let value: Value = found.content_as()?;
                Ok(json!({"value": value, "cas": found.cas().to_string()}))
            }
            "get_all_replicas" => {
                let mut replicas = vec![false];
                documents.get(key, None).await?;
                for index in [ReplicaIndex::First, ReplicaIndex::Second] {
                    let one = GetReplicaStrategy::from_index(index, None);
                    match documents.get_replica(key, one, None).await {
                        Ok(found) => replicas.push(found.is_replica()),
                        Err(error) if kind(&error) == "unretrievable" => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(json!({"replicas": replicas}))
            }
            // This SDK reports a key that never was as an error.
            "exists" => match documents.exists(key, None).await {
                Ok(found) => Ok(json!({"exists": found.exists()})),
                Err(error) if kind(&error) == "document_not_found" => Ok(json!({"exists": false})),
                Err(error) => Err(error),
            },
            "look_inside" => {
                documents.lookup_in(key, &[LookupInSpec::get("n", None)], None).await?;
                Ok(json!({}))
            }
            "change_inside" => {
                let change = MutateInSpec::upsert("n", 1, None)?;
                documents.mutate_in(key, &[change], None).await?;
                Ok(json!({}))
            }
            _ => {
                self.bucket().scope("s").collection("c").get(key, None).await?;
                Ok(json!({}))
            }
        }
    }

    async fn manage(&self, c: &Value) -> Answer {
        let (buckets, name) = (self.cluster().buckets(), text(c, "name"));
        match text(c, "do") {
            "buckets" => {
                let found = buckets.get_all_buckets(None).await?;
                let names: Vec<&String> = found.iter().map(|one| &one.name).collect();
                Ok(json!({"names": names}))
            }
            "get_bucket" => buckets.get_bucket(name, None).await.map(|_| json!({})),
            "create_bucket" => {
                let wanted = BucketSettings::new(name).ram_quota_mb(100);
                buckets.create_bucket(wanted, None).await.map(|_| json!({}))
            }
            "drop_bucket" => buckets.drop_bucket(name, None).await.map(|_| json!({})),
            "flush_bucket" => buckets.flush_bucket(name, None).await.map(|_| json!({})),
            "scopes" => {
                self.bucket().collections().get_all_scopes(None).await.map(|_| json!({}))
            }
            "create_scope" => {
                self.bucket().collections().create_scope(name, None).await.map(|_| json!({}))
            }
            "query" => self.cluster().query("SELECT 1", None).await.map(|_| json!({})),
            other => panic!("no command {other}"),
        }
    }

    async fn manage_users(&self, c: &Value) -> Answer {
        let (users, name) = (self.cluster().users(), text(c, "name"));
        match text(c, "do") {
            "users" => {
                let mut found = Map::new();
                for one in users.get_all_users(None).await? {
                    let roles: Vec<String> = one
                        .user
                        .roles
                        .iter()
                        .map(|role| {
                            format!("{}:{}", role.name, role.bucket.clone().unwrap_or_default())
                        })
                        .collect();
                    found.insert(one.user.username.clone(), json!(roles));
                }
                Ok(json!({"users": found}))
            }
            "get_user" => users.get_user(name, None).await.map(|_| json!({})),
            "roles" => {
                let found = users.get_roles(None).await?;
                let names: Vec<&String> = found.iter().map(|one| &one.role.name).collect();
                Ok(json!({"names": names}))
            }
            "upsert_user" => {
                let user = User::new(name, "", vec![Role::new("admin")])
                    .password(text(c, "password"));
                users.upsert_user(user, None).await.map(|_| json!({}))
            }
            "drop_user" => users.drop_user(name, None).await.map(|_| json!({})),
            _ => users.get_all_groups(None).await.map(|_| json!({})),
        }
    }
}

#[tokio::main]
async fn main() {
    let mut client = Client::default();
    for line in std::io::stdin().lock().lines() {
        let command: Value = serde_json::from_str(&line.expect("a line")).expect("JSON");
        let limit = Duration::from_secs(command["limit_s"].as_u64().unwrap_or(60));
        // This SDK leaves time-outs to its user.
        let answer = match tokio::time::timeout(limit, client.perform(&command)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => json!({"error": kind(&error), "text": format!("{error}")}),
            Err(_) => json!({"error": "timeout", "text": "the program's own"}),
        };
        println!("{answer}");
        std::io::stdout().flush().expect("a pipe");
    }
}
