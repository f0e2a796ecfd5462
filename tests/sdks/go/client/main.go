// Couchbase's SDK for Go, driven by tests/sdks: a command per line in JSON, an answer per line.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/couchbase/gocb/v2"
)

type command struct {
	Do         string          `json:"do"`
	Connection string          `json:"connection"`
	User       string          `json:"user"`
	Password   string          `json:"password"`
	Bucket     string          `json:"bucket"`
	Key        string          `json:"key"`
	Value      json.RawMessage `json:"value"`
	Cas        string          `json:"cas"`
	Majority   bool            `json:"majority"`
	ExpiryS    int             `json:"expiry_s"`
	LimitS     int             `json:"limit_s"`
	Name       string          `json:"name"`
}

type answer map[string]any

var (
	cluster    *gocb.Cluster
	bucket     *gocb.Bucket
	collection *gocb.Collection
)

var kinds = []struct {
	err  error
	kind string
}{
	{gocb.ErrDocumentNotFound, "document_not_found"},
	{gocb.ErrDocumentExists, "document_exists"},
	{gocb.ErrCasMismatch, "cas_mismatch"},
	{gocb.ErrAuthenticationFailure, "authentication"},
	{gocb.ErrBucketNotFound, "bucket_not_found"},
	{gocb.ErrBucketExists, "bucket_exists"},
	{gocb.ErrBucketNotFlushable, "not_flushable"},
	{gocb.ErrUserNotFound, "user_not_found"},
	{gocb.ErrGroupNotFound, "group_not_found"},
	{gocb.ErrFeatureNotAvailable, "not_available"},
	{gocb.ErrServiceNotAvailable, "not_available"},
	{gocb.ErrUnsupportedOperation, "not_available"},
	{gocb.ErrCollectionNotFound, "collection_not_found"},
	{gocb.ErrScopeNotFound, "scope_not_found"},
	{gocb.ErrDocumentUnretrievable, "unretrievable"},
	{gocb.ErrDurabilityAmbiguous, "durability_ambiguous"},
	{gocb.ErrTemporaryFailure, "temporary"},
	{gocb.ErrTimeout, "timeout"},
}

func failed(err error) answer {
	for _, known := range kinds {
		if errors.Is(err, known.err) {
			return answer{"error": known.kind, "text": err.Error()}
		}
	}
	return answer{"error": "other", "text": err.Error()}
}

func (c command) limit() time.Duration {
	return time.Duration(c.LimitS) * time.Second
}

func (c command) durability() gocb.DurabilityLevel {
	if c.Majority {
		return gocb.DurabilityLevelMajority
	}
	return gocb.DurabilityLevelNone
}

func (c command) cas() gocb.Cas {
	number, _ := strconv.ParseUint(c.Cas, 10, 64)
	return gocb.Cas(number)
}

func written(result *gocb.MutationResult, err error) answer {
	if err != nil {
		return failed(err)
	}
	return answer{"cas": strconv.FormatUint(uint64(result.Cas()), 10)}
}

func read(result interface{ Content(any) error }, cas gocb.Cas) answer {
	var value any
	if err := result.Content(&value); err != nil {
		return failed(err)
	}
	return answer{"value": value, "cas": strconv.FormatUint(uint64(cas), 10)}
}

func states(report *gocb.PingResult, err error) answer {
	if err != nil {
		return failed(err)
	}
	names := map[gocb.ServiceType]string{
		gocb.ServiceTypeKeyValue: "kv", gocb.ServiceTypeManagement: "mgmt",
	}
	found := map[string][]string{}
	for service, endpoints := range report.Services {
		name, known := names[service]
		if !known {
			name = fmt.Sprint(service)
		}
		for _, one := range endpoints {
			state := "ok"
			if one.State != gocb.PingStateOk {
				state = one.Error
			}
			found[name] = append(found[name], state)
		}
	}
	return answer{"services": found}
}

func connect(c command) answer {
	var err error
	cluster, err = gocb.Connect(c.Connection, gocb.ClusterOptions{
		Authenticator: gocb.PasswordAuthenticator{Username: c.User, Password: c.Password},
		TimeoutsConfig: gocb.TimeoutsConfig{
			ConnectTimeout: c.limit(), KVTimeout: c.limit(), KVDurableTimeout: c.limit(),
			ManagementTimeout: c.limit(), QueryTimeout: c.limit(),
		},
	})
	if err != nil {
		return failed(err)
	}
	if err := cluster.WaitUntilReady(c.limit(), nil); err != nil {
		return failed(err)
	}
	return answer{}
}

func document(c command) (answer, bool) {
	switch c.Do {
	case "upsert":
		return written(collection.Upsert(c.Key, c.Value, &gocb.UpsertOptions{
			DurabilityLevel: c.durability(), Expiry: time.Duration(c.ExpiryS) * time.Second,
		})), true
	case "insert":
		return written(collection.Insert(c.Key, c.Value, nil)), true
	case "replace":
		return written(collection.Replace(c.Key, c.Value, &gocb.ReplaceOptions{
			Cas: c.cas(), DurabilityLevel: c.durability(),
		})), true
	case "remove":
		return written(collection.Remove(c.Key, &gocb.RemoveOptions{
			Cas: c.cas(), DurabilityLevel: c.durability(),
		})), true
	case "touch":
		return written(collection.Touch(c.Key, time.Duration(c.ExpiryS)*time.Second, nil)), true
	case "get":
		found, err := collection.Get(c.Key, nil)
		if err != nil {
			return failed(err), true
		}
		return read(found, found.Cas()), true
	case "get_any_replica":
		found, err := collection.GetAnyReplica(c.Key, nil)
		if err != nil {
			return failed(err), true
		}
		return read(found, found.Cas()), true
	case "get_all_replicas":
		found, err := collection.GetAllReplicas(c.Key, nil)
		if err != nil {
			return failed(err), true
		}
		replicas := []bool{}
		for one := found.Next(); one != nil; one = found.Next() {
			replicas = append(replicas, one.IsReplica())
		}
		return answer{"replicas": replicas}, true
	case "exists":
		found, err := collection.Exists(c.Key, nil)
		if err != nil {
			return failed(err), true
		}
		return answer{"exists": found.Exists()}, true
	case "look_inside":
		_, err := collection.LookupIn(c.Key, []gocb.LookupInSpec{gocb.GetSpec("n", nil)}, nil)
		return done(err), true
	case "change_inside":
		_, err := collection.MutateIn(
			c.Key, []gocb.MutateInSpec{gocb.UpsertSpec("n", 1, nil)}, nil)
		return done(err), true
	case "get_in_collection":
		_, err := bucket.Scope("s").Collection("c").Get(c.Key, nil)
		return done(err), true
	}
	return nil, false
}

func done(err error) answer {
	if err != nil {
		return failed(err)
	}
	return answer{}
}

func management(c command) answer {
	switch c.Do {
	case "buckets":
		found, err := cluster.Buckets().GetAllBuckets(nil)
		if err != nil {
			return failed(err)
		}
		names := []string{}
		for name := range found {
			names = append(names, name)
		}
		return answer{"names": names}
	case "get_bucket":
		_, err := cluster.Buckets().GetBucket(c.Name, nil)
		return done(err)
	case "drop_bucket":
		return done(cluster.Buckets().DropBucket(c.Name, nil))
	case "create_bucket":
		return done(cluster.Buckets().CreateBucket(gocb.CreateBucketSettings{
			BucketSettings: gocb.BucketSettings{
				Name: c.Name, RAMQuotaMB: 100, BucketType: gocb.CouchbaseBucketType,
			},
		}, nil))
	case "flush_bucket":
		return done(cluster.Buckets().FlushBucket(c.Name, nil))
	case "scopes":
		_, err := bucket.CollectionsV2().GetAllScopes(nil)
		return done(err)
	case "create_scope":
		return done(bucket.CollectionsV2().CreateScope(c.Name, nil))
	case "query":
		_, err := cluster.Query("SELECT 1", nil)
		return done(err)
	}
	return users(c)
}

func users(c command) answer {
	manager := cluster.Users()
	switch c.Do {
	case "users":
		found, err := manager.GetAllUsers(nil)
		if err != nil {
			return failed(err)
		}
		roles := map[string][]string{}
		for _, one := range found {
			roles[one.Username] = []string{}
			for _, role := range one.Roles {
				roles[one.Username] = append(roles[one.Username], role.Name+":"+role.Bucket)
			}
		}
		return answer{"users": roles}
	case "get_user":
		_, err := manager.GetUser(c.Name, nil)
		return done(err)
	case "roles":
		found, err := manager.GetRoles(nil)
		if err != nil {
			return failed(err)
		}
		names := []string{}
		for _, one := range found {
			names = append(names, one.Name)
		}
		return answer{"names": names}
	case "upsert_user":
		return done(manager.UpsertUser(gocb.User{
			Username: c.Name, Password: c.Password,
			Roles: []gocb.Role{{Name: "admin"}},
		}, nil))
	case "drop_user":
		return done(manager.DropUser(c.Name, nil))
	case "groups":
		_, err := manager.GetAllGroups(nil)
		return done(err)
	}
	return answer{"error": "unknown_command", "text": c.Do}
}

func perform(c command) answer {
	switch c.Do {
	case "connect":
		return connect(c)
	case "open":
		bucket = cluster.Bucket(c.Bucket)
		collection = bucket.DefaultCollection()
		return done(bucket.WaitUntilReady(c.limit(), nil))
	case "ping":
		return states(bucket.Ping(nil))
	case "ping_cluster":
		return states(cluster.Ping(nil))
	case "close":
		return done(cluster.Close(nil))
	}
	if found, is := document(c); is {
		return found
	}
	return management(c)
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var c command
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			panic(err)
		}
		line, err := json.Marshal(perform(c))
		if err != nil {
			panic(err)
		}
		fmt.Println(string(line))
	}
}
