import com.mongodb.MongoBulkWriteException;
import com.mongodb.MongoWriteException;
import com.mongodb.client.*;
import com.mongodb.client.model.*;
import com.mongodb.client.model.bulk.*;
import com.mongodb.MongoNamespace;
import org.bson.Document;
import org.bson.types.ObjectId;

import java.time.Instant;
import java.util.*;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;

/** The Java driver against a running server. The last line counts the tests. */
public class DriverTest {
    interface Test { void run(MongoCollection<Document> c) throws Exception; }

    static MongoClient client;
    static boolean set;

    static void want(boolean ok, Object what) {
        if (!ok) throw new AssertionError(String.valueOf(what));
    }

    /** Nanoseconds that a test waits for what may hang: more on a slow machine (golden/waits.py). */
    static long patience() {
        String slowness = System.getenv().getOrDefault("MAYFLY_SLOWNESS", "1");
        return (long) (Double.parseDouble(slowness) * TimeUnit.SECONDS.toNanos(60));
    }

    /** Tries again and again; the bound is a failure, not a pause. */
    static void until(String what, BooleanSupplier f) {
        long end = System.nanoTime() + patience();
        while (!f.getAsBoolean())
            want(System.nanoTime() < end, "waited in vain for " + what);  // clock: a deadline that only a hang misses
    }

    static void crud(MongoCollection<Document> c) {
        c.insertOne(new Document("_id", 1).append("name", "a").append("n", 1));
        Document made = new Document("name", "b").append("n", 2);
        c.insertMany(List.of(made, new Document("name", "c").append("n", 3)));
        want(made.get("_id") instanceof ObjectId, made);
        want(c.updateMany(Filters.gte("n", 2), Updates.inc("n", 10)).getModifiedCount() == 2, "updateMany");
        want(c.updateOne(Filters.eq("new"), Updates.set("n", 99), new UpdateOptions().upsert(true)).getUpsertedId().asString().getValue().equals("new"), "upsert");
        Document got = c.findOneAndUpdate(Filters.eq("name", "a"), Updates.set("n", 5), new FindOneAndUpdateOptions().returnDocument(ReturnDocument.AFTER));
        want(got.getInteger("n") == 5, got);
        want(c.find(Filters.eq("name", "b")).first().getInteger("n") == 12, "find");
        want(c.deleteMany(Filters.in("name", "b", "c")).getDeletedCount() == 2, "deleteMany");
        want(c.countDocuments() == 2, "count");
        try {
            c.insertOne(new Document("_id", 1));
            want(false, "no duplicate key error");
        } catch (MongoWriteException e) {
            want(e.getError().getCode() == 11000, e);
        }
    }

    static void bulk(MongoCollection<Document> c) {
        var r = c.bulkWrite(List.of(
            new InsertOneModel<>(new Document("_id", 1).append("x", 1)), new InsertOneModel<>(new Document("_id", 2).append("x", 2)),
            new UpdateOneModel<>(Filters.eq(1), Updates.inc("x", 1)),
            new ReplaceOneModel<>(Filters.eq(3), new Document("x", 3), new ReplaceOptions().upsert(true)),
            new DeleteOneModel<Document>(Filters.eq(2))));
        want(r.getInsertedCount() == 2 && r.getModifiedCount() == 1 && r.getUpserts().size() == 1 && r.getDeletedCount() == 1, r);
        try {
            c.bulkWrite(List.of(new InsertOneModel<>(new Document("_id", 1)), new InsertOneModel<>(new Document("_id", 4))), new BulkWriteOptions().ordered(false));
            want(false, "no error");
        } catch (MongoBulkWriteException e) {
            want(e.getWriteErrors().size() == 1 && e.getWriteErrors().get(0).getCode() == 11000, e);
        }
        want(c.countDocuments() == 3, "count");
    }

    /** The bulkWrite command of 8.0, on two collections. */
    static void clientBulk(MongoCollection<Document> c) {
        MongoNamespace a = c.getNamespace(), b = new MongoNamespace(a.getDatabaseName(), a.getCollectionName() + "2");
        client.getDatabase(b.getDatabaseName()).getCollection(b.getCollectionName()).drop();
        var r = client.bulkWrite(List.of(
            ClientNamespacedWriteModel.insertOne(a, new Document("_id", 1)), ClientNamespacedWriteModel.insertOne(b, new Document("_id", 1)),
            ClientNamespacedWriteModel.updateOne(a, Filters.eq(1), Updates.set("x", 1)),
            ClientNamespacedWriteModel.deleteOne(b, Filters.eq(1))), ClientBulkWriteOptions.clientBulkWriteOptions().verboseResults(true));
        want(r.getInsertedCount() == 2 && r.getModifiedCount() == 1 && r.getDeletedCount() == 1, r);
        want(r.getVerboseResults().get().getDeleteResults().get(3).getDeletedCount() == 1, r);
        want(c.find().first().getInteger("x") == 1, "updated");
    }

    static void cursors(MongoCollection<Document> c) {
        List<Document> docs = new ArrayList<>();
        for (int i = 0; i < 1000; i++) docs.add(new Document("_id", i).append("mod", i % 7));
        c.insertMany(docs);
        int last = 1000, n = 0;
        for (Document d : c.find(Filters.eq("mod", 3)).sort(Sorts.descending("_id")).batchSize(10)) {
            want(d.getInteger("_id") < last, "order");
            last = d.getInteger("_id");
            n++;
        }
        want(n == 143, n);
        List<Document> groups = c.aggregate(List.of(Aggregates.group("$mod", Accumulators.sum("n", 1)), Aggregates.sort(Sorts.ascending("_id")))).into(new ArrayList<>());
        want(groups.size() == 7 && groups.get(0).getInteger("n") == 143, groups);
        want(c.distinct("mod", Integer.class).into(new ArrayList<>()).size() == 7, "distinct");
    }

    static void indexes(MongoCollection<Document> c) {
        want(c.createIndex(Indexes.compoundIndex(Indexes.ascending("a"), Indexes.descending("b")), new IndexOptions().unique(true)).equals("a_1_b_-1"), "name");
        want(c.listIndexes().into(new ArrayList<>()).get(1).getBoolean("unique"), "unique");
        c.dropIndex("a_1_b_-1");
        want(c.listIndexes().into(new ArrayList<>()).size() == 1, "dropped");
    }

    static void expiry(MongoCollection<Document> c) {
        c.createIndex(Indexes.ascending("at"), new IndexOptions().expireAfter(60L, TimeUnit.SECONDS));
        want(c.listIndexes().into(new ArrayList<>()).get(1).getInteger("expireAfterSeconds") == 60, "index");
        c.insertMany(List.of(new Document("_id", "old").append("at", Date.from(Instant.now().minusSeconds(120))), new Document("_id", "young").append("at", new Date())));
        until("the expired document to go", () -> c.countDocuments(Filters.eq("old")) == 0);
        want(c.countDocuments(Filters.eq("young")) == 1, "the other document went too");
    }

    static void sessions(MongoCollection<Document> c) {
        try (ClientSession s = client.startSession()) {
            c.insertMany(s, List.of(new Document("_id", 1), new Document("_id", 2), new Document("_id", 3)));
            want(c.find(s).batchSize(1).into(new ArrayList<>()).size() == 3, "find in a session");
            boolean done = true;
            try {
                s.withTransaction(() -> c.insertOne(s, new Document("_id", 4)));
            } catch (RuntimeException e) {
                done = false;
            }
            want(done == set, "a set has transactions, a single server refuses them");
        }
        want(c.countDocuments() == (set ? 4 : 3), "count");
    }

    static void failPoint(String name, Document data) {
        client.getDatabase("admin").runCommand(new Document("configureFailPoint", name).append("mode", new Document("times", 1)).append("data", data));
    }

    /** Each write fails in one of several ways at its first try, and is there once. After a broken connection drivers wait half a second. */
    static void retries(MongoCollection<Document> c) {
        c.insertOne(new Document("_id", "sum").append("n", 0));
        for (int i = 0; i < 18; i++) {
            if (i % 3 == 0)  // done, but the client does not hear of it
                failPoint("onPrimaryTransactionalWrite", new Document("closeConnection", true));
            else if (i % 3 == 1)
                failPoint("failCommand", new Document("failCommands", List.of("insert", "update")).append("closeConnection", true));
            else
                failPoint("failCommand", new Document("failCommands", List.of("insert", "update")).append("errorCode", 11600).append("errorLabels", List.of("RetryableWriteError")));
            if (i % 2 == 0) c.insertOne(new Document("v", i));
            else c.updateOne(Filters.eq("sum"), Updates.inc("n", 1));
        }
        want(c.countDocuments(Filters.exists("v")) == 9, "a document was lost or is there twice");
        want(c.find(Filters.eq("sum")).first().getInteger("n") == 9, "an increment was lost or done twice");
    }

    public static void main(String[] args) {
        client = MongoClients.create(System.getenv("MONGODB_URI"));
        set = client.getDatabase("admin").runCommand(new Document("hello", 1)).containsKey("setName");
        Map<String, Test> tests = new LinkedHashMap<>();
        tests.put("crud", DriverTest::crud);
        tests.put("bulk", DriverTest::bulk);
        tests.put("clientBulk", DriverTest::clientBulk);
        tests.put("cursors", DriverTest::cursors);
        tests.put("indexes", DriverTest::indexes);
        tests.put("expiry", DriverTest::expiry);
        tests.put("sessions", DriverTest::sessions);
        if (set) tests.put("retries", DriverTest::retries);
        int passed = 0, failed = 0;
        for (var t : tests.entrySet()) {
            MongoCollection<Document> c = client.getDatabase("driver_java").getCollection(t.getKey());
            try {
                c.drop();
                t.getValue().run(c);
                passed++;
            } catch (Throwable e) {
                failed++;
                System.out.println("FAIL " + t.getKey() + ": " + e);
                e.printStackTrace(System.out);
            }
        }
        client.getDatabase("driver_java").drop();
        client.close();
        System.out.println(passed + " passed, " + failed + " failed");
        System.exit(failed > 0 ? 1 : 0);
    }
}
