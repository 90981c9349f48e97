import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import java.time.Instant;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.bson.Document;
import org.bson.types.ObjectId;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.dao.DataIntegrityViolationException;
import org.springframework.data.annotation.Id;
import org.springframework.data.mongodb.MongoDatabaseFactory;
import org.springframework.data.mongodb.MongoTransactionManager;
import org.springframework.data.mongodb.core.MongoTemplate;
import org.springframework.data.mongodb.core.SimpleMongoClientDatabaseFactory;
import org.springframework.data.mongodb.core.index.Index;
import org.springframework.data.mongodb.core.mapping.TimeSeries;
import org.springframework.data.mongodb.core.query.Criteria;
import org.springframework.data.mongodb.core.query.Query;
import org.springframework.data.mongodb.core.query.Update;
import org.springframework.data.mongodb.core.timeseries.Granularity;
import org.springframework.data.domain.Sort;
import org.springframework.transaction.annotation.EnableTransactionManagement;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.TransactionTemplate;

import static org.springframework.data.mongodb.core.aggregation.Aggregation.*;

/** Spring Data MongoDB with transactions, on a set. The last line counts. */
public class SpringTest {
    public static class Account {
        @Id public String id;
        public int sum;
    }

    /** What an app has. */
    public static class Bank {
        final MongoTemplate db;
        public Bank(MongoTemplate db) { this.db = db; }

        @Transactional
        public void move(String from, String to, int sum) {
            db.updateFirst(named(from), new Update().inc("sum", -sum), Account.class);
            db.updateFirst(named(to), new Update().inc("sum", sum), Account.class);
            db.insert(new Document("from", from).append("to", to).append("sum", sum), "journal");
            if (db.findById(from, Account.class).sum < 0) throw new IllegalStateException("too little");
        }
    }

    @Configuration
    @EnableTransactionManagement(proxyTargetClass = true)
    static class App {
        @Bean MongoClient client() { return MongoClients.create(System.getenv("MONGODB_URI")); }
        @Bean MongoDatabaseFactory factory(MongoClient c) { return new SimpleMongoClientDatabaseFactory(c, "spring"); }
        @Bean MongoTransactionManager manager(MongoDatabaseFactory f) { return new MongoTransactionManager(f); }
        @Bean MongoTemplate template(MongoDatabaseFactory f) { return new MongoTemplate(f); }
    }

    static int passed, failed;
    static MongoTemplate db;

    static Query named(String id) { return Query.query(Criteria.where("id").is(id)); }

    static void check(boolean ok, String what) {
        if (ok) passed++; else { failed++; System.out.println("FAIL " + what); }
    }

    static String sums() {
        List<Integer> all = new ArrayList<>();
        for (Account a : db.find(new Query().with(Sort.by("id")), Account.class)) all.add(a.sum);
        return all + " " + db.getCollection("journal").countDocuments();
    }

    /** A time series of Spring Data's annotation. */
    @TimeSeries(collection = "weather", timeField = "at", metaField = "sensor", granularity = Granularity.MINUTES)
    public static class Point {
        @Id public ObjectId id;
        public Instant at;
        public int sensor;
        public double celsius;
        static Point of(Instant at, int sensor, double celsius) {
            Point p = new Point();
            p.at = at;
            p.sensor = sensor;
            p.celsius = celsius;
            return p;
        }
    }

    static void timeSeries() {
        db.createCollection(Point.class);
        Instant begin = Instant.parse("2030-01-01T00:00:00Z");
        List<Point> points = new ArrayList<>();
        for (int i = 0; i < 100; i++) points.add(Point.of(begin.plusSeconds(60 * i), i % 4, i));
        db.insertAll(points);
        Document shown = db.getDb().listCollections().filter(new Document("name", "weather")).first();
        check(shown != null && "timeseries".equals(shown.getString("type")), "a time series: " + shown);
        check(shown.get("options", Document.class).get("timeseries", Document.class).getString("granularity")
            .equals("minutes"), "its granularity: " + shown);
        Query late = Query.query(Criteria.where("sensor").is(3).and("at").gte(begin.plusSeconds(60 * 90)));
        List<Point> found = db.find(late.with(Sort.by(Sort.Direction.DESC, "at")), Point.class);
        check(found.size() == 3 && found.get(0).celsius == 99 && found.get(0).at.equals(begin.plusSeconds(60 * 99)),
            "points by time: " + found.size());
        var means = db.aggregate(newAggregation(group("sensor").avg("celsius").as("mean"), sort(Sort.by("_id"))),
            Point.class, Document.class).getMappedResults();
        check(means.size() == 4 && means.get(0).getDouble("mean") == 48.0, "means: " + means);
        check(db.remove(Query.query(Criteria.where("sensor").is(1)), Point.class).getDeletedCount() == 25, "deletes");
        check(db.count(new Query(), Point.class) == 75, "what is left");
        db.dropCollection(Point.class);
    }

    static boolean fails(Class<?> with, Callable<?> f) {
        try {
            f.call();
            return false;
        } catch (Exception e) {
            if (!with.isInstance(e)) System.out.println("     " + e);
            return with.isInstance(e);
        }
    }

    public static void main(String[] args) throws Exception {
        try (var app = new AnnotationConfigApplicationContext()) {
            app.register(App.class);
            app.registerBean(Bank.class);
            app.refresh();
            db = app.getBean(MongoTemplate.class);
            MongoClient client = app.getBean(MongoClient.class);
            Bank bank = app.getBean(Bank.class);
            TransactionTemplate in = new TransactionTemplate(app.getBean(MongoTransactionManager.class));
            db.getDb().drop();
            db.createCollection("journal");
            db.indexOps("journal").createIndex(new Index().on("key", Sort.Direction.ASC).unique().sparse());
            for (String id : List.of("a", "b")) {
                Account a = new Account();
                a.id = id;
                a.sum = 100;
                db.insert(a);
            }
            bank.move("a", "b", 30);
            check(sums().equals("[70, 130] 1"), "a transfer: " + sums());
            check(fails(IllegalStateException.class, () -> { bank.move("a", "b", 71); return 0; }), "too little");
            check(sums().equals("[70, 130] 1"), "a transfer that fails: " + sums());
            in.executeWithoutResult(s -> {
                db.insert(new Document("key", 1), "journal");
                check(db.count(new Query(), "journal") == 2, "counts its own");
                check(client.getDatabase("spring").getCollection("journal").countDocuments() == 1, "others do not");
                s.setRollbackOnly();
            });
            check(sums().equals("[70, 130] 1"), "taken back: " + sums());
            db.insert(new Document("key", 1), "journal");
            check(fails(DataIntegrityViolationException.class, () -> in.execute(s -> {
                db.insert(new Document("key", 2), "journal");
                return db.insert(new Document("key", 1), "journal");
            })), "a unique key");
            check(sums().equals("[70, 130] 2"), "after a unique key: " + sums());
            var threads = Executors.newFixedThreadPool(8);
            List<Future<Integer>> moves = new ArrayList<>();
            for (int i = 0; i < 40; i++) {
                boolean there = i % 2 == 0;
                moves.add(threads.submit(() -> {
                    for (int tries = 1;; tries++) {
                        try {
                            bank.move(there ? "a" : "b", there ? "b" : "a", 1);
                            return tries;
                        } catch (RuntimeException e) {
                            if (tries == 1000 || !transientError(e)) throw e;
                        }
                    }
                }));
            }
            int tries = 0;
            for (Future<Integer> m : moves) tries += m.get();
            threads.shutdown();
            timeSeries();
            check(sums().equals("[70, 130] 42"), "after 40 transfers with " + tries + " tries: " + sums());
        }
        System.out.println(passed + " passed, " + failed + " failed");
        System.exit(failed > 0 ? 1 : 0);
    }

    static boolean transientError(Throwable e) {
        for (; e != null; e = e.getCause())
            if (e instanceof com.mongodb.MongoException m && m.hasErrorLabel("TransientTransactionError")) return true;
        return false;
    }
}
