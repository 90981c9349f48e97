// The Go driver against a running server: connect, CRUD, bulk writes, cursors, indexes, expiry, sessions; on a replica set also retryable
// writes. The last line counts the tests.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

var (
	ctx      = context.Background()
	client   *mongo.Client
	db       *mongo.Database
	setName  string
	tests    []test
	errWrong = errors.New("wrong result")
)

type test struct {
	name string
	run  func(c *mongo.Collection) error
}

func want(ok bool, format string, args ...any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("%w: %s", errWrong, fmt.Sprintf(format, args...))
}

// first is the first error there is.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// patience is how long a test waits for what may hang: longer on a slow machine (golden/waits.py).
func patience() time.Duration {
	slowness, err := strconv.ParseFloat(os.Getenv("MAYFLY_SLOWNESS"), 64)
	if err != nil {
		slowness = 1
	}
	return time.Duration(60 * slowness * float64(time.Second))
}

// until tries f again and again; the bound is a failure, not a pause.
func until(what string, f func() (bool, error)) error {
	end := time.Now().Add(patience())
	for {
		ok, err := f()
		if ok || err != nil {
			return err
		}
		if time.Now().After(end) { // clock: a deadline that only a hang misses
			return fmt.Errorf("waited in vain for %s", what)
		}
	}
}

func crud(c *mongo.Collection) error {
	if _, err := c.InsertOne(ctx, bson.D{{"_id", 1}, {"name", "a"}, {"n", 1}}); err != nil {
		return err
	}
	many, err := c.InsertMany(ctx, []any{bson.D{{"name", "b"}, {"n", 2}}, bson.D{{"name", "c"}, {"n", 3}}})
	if err != nil {
		return err
	}
	if _, ok := many.InsertedIDs[0].(bson.ObjectID); !ok {
		return want(false, "no ObjectID: %v", many.InsertedIDs)
	}
	u, err := c.UpdateMany(ctx, bson.D{{"n", bson.D{{"$gte", 2}}}}, bson.D{{"$inc", bson.D{{"n", 10}}}})
	if err != nil || u.ModifiedCount != 2 {
		return first(err, want(false, "update %+v", u))
	}
	u, err = c.UpdateOne(ctx, bson.D{{"_id", "new"}}, bson.D{{"$set", bson.D{{"n", 99}}}}, options.UpdateOne().SetUpsert(true))
	if err != nil || u.UpsertedID != "new" {
		return first(err, want(false, "upsert %+v", u))
	}
	var got struct {
		Name string
		N    int
	}
	err = c.FindOneAndUpdate(ctx, bson.D{{"name", "a"}}, bson.D{{"$set", bson.D{{"n", 5}}}},
		options.FindOneAndUpdate().SetReturnDocument(options.After)).Decode(&got)
	if err != nil || got.N != 5 {
		return first(err, want(false, "findOneAndUpdate %+v", got))
	}
	if err = c.FindOne(ctx, bson.D{{"name", "b"}}).Decode(&got); err != nil || got.N != 12 {
		return first(err, want(false, "findOne %+v", got))
	}
	d, err := c.DeleteMany(ctx, bson.D{{"name", bson.D{{"$in", bson.A{"b", "c"}}}}})
	if err != nil || d.DeletedCount != 2 {
		return first(err, want(false, "delete %+v", d))
	}
	n, err := c.CountDocuments(ctx, bson.D{})
	if err != nil || n != 2 {
		return first(err, want(false, "count %d", n))
	}
	_, err = c.InsertOne(ctx, bson.D{{"_id", 1}})
	return want(mongo.IsDuplicateKeyError(err), "no duplicate key error: %v", err)
}

func bulk(c *mongo.Collection) error {
	r, err := c.BulkWrite(ctx, []mongo.WriteModel{
		mongo.NewInsertOneModel().SetDocument(bson.D{{"_id", 1}, {"x", 1}}),
		mongo.NewInsertOneModel().SetDocument(bson.D{{"_id", 2}, {"x", 2}}),
		mongo.NewUpdateOneModel().SetFilter(bson.D{{"_id", 1}}).SetUpdate(bson.D{{"$inc", bson.D{{"x", 1}}}}),
		mongo.NewReplaceOneModel().SetFilter(bson.D{{"_id", 3}}).SetReplacement(bson.D{{"x", 3}}).SetUpsert(true),
		mongo.NewDeleteOneModel().SetFilter(bson.D{{"_id", 2}}),
	})
	if err != nil {
		return err
	}
	if err = want(r.InsertedCount == 2 && r.ModifiedCount == 1 && r.UpsertedCount == 1 && r.DeletedCount == 1, "%+v", r); err != nil {
		return err
	}
	_, err = c.BulkWrite(ctx, []mongo.WriteModel{
		mongo.NewInsertOneModel().SetDocument(bson.D{{"_id", 1}}),
		mongo.NewInsertOneModel().SetDocument(bson.D{{"_id", 4}}),
	}, options.BulkWrite().SetOrdered(false))
	var failed mongo.BulkWriteException
	if !errors.As(err, &failed) || len(failed.WriteErrors) != 1 || failed.WriteErrors[0].Code != 11000 {
		return want(false, "bulk error %v", err)
	}
	n, err := c.CountDocuments(ctx, bson.D{})
	return first(err, want(n == 3, "count %d", n))
}

func cursors(c *mongo.Collection) error {
	docs := make([]any, 1000)
	for i := range docs {
		docs[i] = bson.D{{"_id", i}, {"mod", i % 7}}
	}
	if _, err := c.InsertMany(ctx, docs); err != nil {
		return err
	}
	cur, err := c.Find(ctx, bson.D{{"mod", 3}}, options.Find().SetBatchSize(10).SetSort(bson.D{{"_id", -1}}))
	if err != nil {
		return err
	}
	last, n := 1000, 0
	for cur.Next(ctx) {
		var d struct {
			ID int `bson:"_id"`
		}
		if err = cur.Decode(&d); err != nil || d.ID >= last {
			return first(err, want(false, "order"))
		}
		last = d.ID
		n++
	}
	if cur.Err() != nil || n != 143 {
		return first(cur.Err(), want(false, "%d documents", n))
	}
	agg, err := c.Aggregate(ctx, bson.A{bson.D{{"$group", bson.D{{"_id", "$mod"}, {"n", bson.D{{"$sum", 1}}}}}}, bson.D{{"$sort", bson.D{{"_id", 1}}}}})
	if err != nil {
		return err
	}
	var groups []struct {
		ID, N int
	}
	if err = agg.All(ctx, &groups); err != nil || len(groups) != 7 || groups[0].N != 143 {
		return first(err, want(false, "groups %v", groups))
	}
	var values []int
	if err = c.Distinct(ctx, "mod", bson.D{}).Decode(&values); err != nil || len(values) != 7 {
		return first(err, want(false, "distinct %v", values))
	}
	return nil
}

func indexes(c *mongo.Collection) error {
	name, err := c.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{"a", 1}, {"b", -1}}, Options: options.Index().SetUnique(true)})
	if err != nil || name != "a_1_b_-1" {
		return first(err, want(false, "name %s", name))
	}
	specs, err := c.Indexes().ListSpecifications(ctx)
	if err != nil || len(specs) != 2 || specs[1].Unique == nil || !*specs[1].Unique {
		return first(err, want(false, "%d indexes", len(specs)))
	}
	if err = c.Indexes().DropOne(ctx, name); err != nil {
		return err
	}
	specs, err = c.Indexes().ListSpecifications(ctx)
	return first(err, want(len(specs) == 1, "%d indexes", len(specs)))
}

func expiry(c *mongo.Collection) error {
	_, err := c.Indexes().CreateOne(ctx, mongo.IndexModel{Keys: bson.D{{"at", 1}}, Options: options.Index().SetExpireAfterSeconds(60)})
	if err != nil {
		return err
	}
	specs, err := c.Indexes().ListSpecifications(ctx)
	if err != nil || specs[1].ExpireAfterSeconds == nil || *specs[1].ExpireAfterSeconds != 60 {
		return first(err, want(false, "index"))
	}
	_, err = c.InsertMany(ctx, []any{bson.D{{"_id", "old"}, {"at", time.Now().Add(-2 * time.Minute)}}, bson.D{{"_id", "young"}, {"at", time.Now()}}})
	if err != nil {
		return err
	}
	if err = until("the expired document to go", func() (bool, error) {
		n, err := c.CountDocuments(ctx, bson.D{{"_id", "old"}})
		return n == 0, err
	}); err != nil {
		return err
	}
	n, err := c.CountDocuments(ctx, bson.D{{"_id", "young"}})
	return first(err, want(n == 1, "the other document went too"))
}

func sessions(c *mongo.Collection) error {
	s, err := client.StartSession()
	if err != nil {
		return err
	}
	defer s.EndSession(ctx)
	in := mongo.NewSessionContext(ctx, s)
	if _, err = c.InsertMany(in, []any{bson.D{{"_id", 1}}, bson.D{{"_id", 2}}, bson.D{{"_id", 3}}}); err != nil {
		return err
	}
	cur, err := c.Find(in, bson.D{}, options.Find().SetBatchSize(1))
	if err != nil {
		return err
	}
	var all []bson.D
	if err = cur.All(in, &all); err != nil || len(all) != 3 {
		return first(err, want(false, "%d documents", len(all)))
	}
	// A set has transactions, a single server refuses them.
	_, err = s.WithTransaction(ctx, func(in context.Context) (any, error) {
		return c.InsertOne(in, bson.D{{"_id", 4}})
	})
	if (err == nil) != (setName != "") {
		return want(false, "a transaction: %v", err)
	}
	expected := int64(3)
	if setName != "" {
		expected = 4
	}
	n, err := c.CountDocuments(ctx, bson.D{})
	return first(err, want(n == expected, "count %d", n))
}

// retries: each write fails in one of several ways at its first try, and is there once.
func retries(c *mongo.Collection) error {
	point := func(name string, data bson.D) error {
		return client.Database("admin").RunCommand(ctx, bson.D{{"configureFailPoint", name}, {"mode", bson.D{{"times", 1}}}, {"data", data}}).Err()
	}
	if _, err := c.InsertOne(ctx, bson.D{{"_id", "sum"}, {"n", 0}}); err != nil {
		return err
	}
	for i := 0; i < 18; i++ {
		var err error
		switch i % 3 {
		case 0: // done, but the client does not hear of it
			err = point("onPrimaryTransactionalWrite", bson.D{{"closeConnection", true}})
		case 1: // not done
			err = point("failCommand", bson.D{{"failCommands", bson.A{"insert", "update"}}, {"closeConnection", true}})
		case 2:
			err = point("failCommand", bson.D{{"failCommands", bson.A{"insert", "update"}}, {"errorCode", 11600}, {"errorLabels", bson.A{"RetryableWriteError"}}})
		}
		if err != nil {
			return err
		}
		if i%2 == 0 {
			_, err = c.InsertOne(ctx, bson.D{{"v", i}})
		} else {
			_, err = c.UpdateOne(ctx, bson.D{{"_id", "sum"}}, bson.D{{"$inc", bson.D{{"n", 1}}}})
		}
		if err != nil {
			return fmt.Errorf("write %d: %w", i, err)
		}
	}
	n, err := c.CountDocuments(ctx, bson.D{{"v", bson.D{{"$exists", true}}}})
	if err != nil || n != 9 {
		return first(err, want(false, "%d documents instead of 9", n))
	}
	n, err = c.CountDocuments(ctx, bson.D{{"_id", "sum"}, {"n", 9}})
	return first(err, want(n == 1, "an increment was lost or done twice"))
}

// lookAtServer notes of which set the client's server is a member.
func lookAtServer() error {
	var hello struct {
		SetName string `bson:"setName"`
	}
	err := client.Database("admin").RunCommand(ctx, bson.D{{"hello", 1}}).Decode(&hello)
	setName = hello.SetName
	return err
}

func main() {
	if logins := os.Getenv("LOGINS"); logins != "" {
		access(logins)
		return
	}
	var err error
	client, err = mongo.Connect(options.Client().ApplyURI(os.Getenv("MONGODB_URI")).SetServerSelectionTimeout(patience()))
	if err != nil {
		panic(err)
	}
	if err = lookAtServer(); err != nil {
		panic(err)
	}
	db = client.Database("driver_go")
	tests = []test{{"crud", crud}, {"bulk", bulk}, {"cursors", cursors}, {"indexes", indexes}, {"expiry", expiry}, {"sessions", sessions}}
	if setName != "" {
		tests = append(tests, test{"retries", retries}, test{"transfers", transfers})
	}
	passed, failed := 0, 0
	for _, t := range tests {
		c := db.Collection(t.name)
		err := c.Drop(ctx)
		if err == nil {
			err = t.run(c)
		}
		if err != nil {
			failed++
			fmt.Printf("FAIL %s: %v\n", t.name, err)
		} else {
			passed++
		}
	}
	if err = first(db.Drop(ctx), client.Disconnect(ctx)); err != nil {
		failed++
		fmt.Println("FAIL end:", err)
	}
	fmt.Printf("%d passed, %d failed\n", passed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}
