// Couchbase's SDK for Java, driven by tests/sdks: a command per line in JSON, an answer per line.

import com.couchbase.client.core.diagnostics.PingResult;
import com.couchbase.client.core.diagnostics.PingState;
import com.couchbase.client.core.error.*;
import com.couchbase.client.core.msg.kv.DurabilityLevel;
import com.couchbase.client.core.service.ServiceType;
import com.couchbase.client.java.Bucket;
import com.couchbase.client.java.Cluster;
import com.couchbase.client.java.ClusterOptions;
import com.couchbase.client.java.Collection;
import com.couchbase.client.java.json.JsonObject;
import com.couchbase.client.java.kv.*;
import com.couchbase.client.java.manager.bucket.BucketSettings;
import com.couchbase.client.java.manager.user.Role;
import com.couchbase.client.java.manager.user.User;
import com.couchbase.client.java.manager.user.UserAndMetadata;
import com.couchbase.client.core.env.PasswordAuthenticator;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.logging.Level;
import java.util.logging.Logger;
import java.util.stream.Collectors;

public class Client {
  static final Map<Class<?>, String> KINDS = new LinkedHashMap<>();

  static {
    KINDS.put(DocumentNotFoundException.class, "document_not_found");
    KINDS.put(DocumentExistsException.class, "document_exists");
    KINDS.put(CasMismatchException.class, "cas_mismatch");
    KINDS.put(AuthenticationFailureException.class, "authentication");
    KINDS.put(BucketNotFoundException.class, "bucket_not_found");
    KINDS.put(BucketExistsException.class, "bucket_exists");
    KINDS.put(BucketNotFlushableException.class, "not_flushable");
    KINDS.put(UserNotFoundException.class, "user_not_found");
    KINDS.put(GroupNotFoundException.class, "group_not_found");
    KINDS.put(FeatureNotAvailableException.class, "not_available");
    KINDS.put(ServiceNotAvailableException.class, "not_available");
    KINDS.put(CollectionNotFoundException.class, "collection_not_found");
    KINDS.put(ScopeNotFoundException.class, "scope_not_found");
    KINDS.put(DocumentUnretrievableException.class, "unretrievable");
    KINDS.put(DurabilityAmbiguousException.class, "durability_ambiguous");
    KINDS.put(TemporaryFailureException.class, "temporary");
    KINDS.put(TimeoutException.class, "timeout");
  }

  static Cluster cluster;
  static Bucket bucket;
  static Collection documents;

  static JsonObject failed(Throwable error) {
    String kind = "other";
    for (Map.Entry<Class<?>, String> known : KINDS.entrySet()) {
      if (known.getKey().isInstance(error)) {
        kind = known.getValue();
        break;
      }
    }
    return JsonObject.create().put("error", kind).put("text", error.toString());
  }

  static JsonObject written(MutationResult result) {
    return JsonObject.create().put("cas", Long.toUnsignedString(result.cas()));
  }

  static JsonObject read(GetResult result) {
    return JsonObject.create()
        .put("value", result.contentAsObject())
        .put("cas", Long.toUnsignedString(result.cas()));
  }

  static JsonObject services(PingResult report) {
    JsonObject found = JsonObject.create();
    report.endpoints().forEach((service, endpoints) -> {
      String name = service == ServiceType.KV ? "kv"
          : service == ServiceType.MANAGER ? "mgmt" : service.toString();
      found.put(name, endpoints.stream()
          .map(one -> one.state() == PingState.OK ? "ok" : String.valueOf(one.error()))
          .collect(Collectors.toList()));
    });
    return JsonObject.create().put("services", found);
  }

  static JsonObject none() {
    return JsonObject.create();
  }

  static JsonObject names(List<String> names) {
    return JsonObject.create().put("names", names);
  }

  static Duration limit(JsonObject c) {
    return Duration.ofSeconds(c.getInt("limit_s"));
  }

  static long cas(JsonObject c) {
    return c.containsKey("cas") ? Long.parseUnsignedLong(c.getString("cas")) : 0;
  }

  static DurabilityLevel durability(JsonObject c) {
    return Boolean.TRUE.equals(c.getBoolean("majority"))
        ? DurabilityLevel.MAJORITY : DurabilityLevel.NONE;
  }

  static JsonObject connect(JsonObject c) {
    PasswordAuthenticator.Builder who =
        PasswordAuthenticator.builder(c.getString("user"), c.getString("password"));
    if (Boolean.TRUE.equals(c.getBoolean("plain"))) {
      who.onlyEnablePlainSaslMechanism();
    }
    cluster = Cluster.connect(c.getString("connection"),
        ClusterOptions.clusterOptions(who.build())
            .environment(environment -> environment.timeoutConfig(timeouts -> timeouts
                .connectTimeout(limit(c)).kvTimeout(limit(c)).kvDurableTimeout(limit(c))
                .managementTimeout(limit(c)).queryTimeout(limit(c)))));
    cluster.waitUntilReady(limit(c));
    return none();
  }

  static JsonObject document(JsonObject c) {
    String key = c.getString("key");
    switch (c.getString("do")) {
      case "upsert": {
        UpsertOptions options = UpsertOptions.upsertOptions().durability(durability(c));
        if (c.containsKey("expiry_s")) {
          options.expiry(Duration.ofSeconds(c.getInt("expiry_s")));
        }
        return written(documents.upsert(key, c.getObject("value"), options));
      }
      case "insert":
        return written(documents.insert(key, c.getObject("value")));
      case "replace":
        return written(documents.replace(key, c.getObject("value"),
            ReplaceOptions.replaceOptions().cas(cas(c)).durability(durability(c))));
      case "remove":
        return written(documents.remove(key,
            RemoveOptions.removeOptions().cas(cas(c)).durability(durability(c))));
      case "touch":
        return written(documents.touch(key, Duration.ofSeconds(c.getInt("expiry_s"))));
      case "get":
        return read(documents.get(key));
      case "get_any_replica":
        return read(documents.getAnyReplica(key));
      case "get_all_replicas":
        return JsonObject.create().put("replicas", documents.getAllReplicas(key)
            .map(GetReplicaResult::isReplica).collect(Collectors.toList()));
      case "exists":
        return JsonObject.create().put("exists", documents.exists(key).exists());
      case "look_inside":
        documents.lookupIn(key, List.of(LookupInSpec.get("n")));
        return none();
      case "change_inside":
        documents.mutateIn(key, List.of(MutateInSpec.upsert("n", 1)));
        return none();
      case "get_in_collection":
        bucket.scope("s").collection("c").get(key);
        return none();
      default:
        return null;
    }
  }

  static JsonObject management(JsonObject c) {
    String name = c.getString("name");
    switch (c.getString("do")) {
      case "buckets":
        return names(new ArrayList<>(cluster.buckets().getAllBuckets().keySet()));
      case "get_bucket":
        cluster.buckets().getBucket(name);
        return none();
      case "create_bucket":
        cluster.buckets().createBucket(BucketSettings.create(name).ramQuotaMB(100));
        return none();
      case "drop_bucket":
        cluster.buckets().dropBucket(name);
        return none();
      case "flush_bucket":
        cluster.buckets().flushBucket(name);
        return none();
      case "scopes":
        bucket.collections().getAllScopes();
        return none();
      case "create_scope":
        bucket.collections().createScope(name);
        return none();
      case "query":
        cluster.query("SELECT 1");
        return none();
      case "users": {
        JsonObject found = JsonObject.create();
        for (UserAndMetadata one : cluster.users().getAllUsers()) {
          found.put(one.user().username(), one.user().roles().stream()
              .map(role -> role.name() + ":" + role.bucket().orElse(""))
              .collect(Collectors.toList()));
        }
        return JsonObject.create().put("users", found);
      }
      case "get_user":
        cluster.users().getUser(com.couchbase.client.java.manager.user.AuthDomain.LOCAL, name);
        return none();
      case "roles":
        return names(cluster.users().getRoles().stream()
            .map(one -> one.role().name()).collect(Collectors.toList()));
      case "upsert_user":
        cluster.users().upsertUser(
            new User(name).password(c.getString("password")).roles(new Role("admin")));
        return none();
      case "drop_user":
        cluster.users().dropUser(name);
        return none();
      case "groups":
        cluster.users().getAllGroups();
        return none();
      default:
        throw new IllegalArgumentException(c.getString("do"));
    }
  }

  static JsonObject perform(JsonObject c) {
    switch (c.getString("do")) {
      case "connect":
        return connect(c);
      case "open":
        bucket = cluster.bucket(c.getString("bucket"));
        documents = bucket.defaultCollection();
        bucket.waitUntilReady(limit(c));
        return none();
      case "ping":
        return services(bucket.ping());
      case "ping_cluster":
        return services(cluster.ping());
      case "close":
        cluster.disconnect();
        return none();
      default:
        JsonObject found = document(c);
        return found != null ? found : management(c);
    }
  }

  public static void main(String[] words) throws Exception {
    Logger.getLogger("com.couchbase.client").setLevel(Level.WARNING);
    BufferedReader lines =
        new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      JsonObject answer;
      try {
        answer = perform(JsonObject.fromJson(line));
      } catch (Throwable error) {
        answer = failed(error);
      }
      System.out.println(answer);
    }
    System.exit(0);
  }
}
