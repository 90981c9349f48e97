import com.mongodb.client.MongoClient;
import com.mongodb.client.MongoClients;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Callable;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.bson.Document;
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
import org.springframework.data.mongodb.core.query.Criteria;
import org.springframework.data.mongodb.core.query.Query;
import org.springframework.data.mongodb.core.query.Update;
import org.springframework.data.domain.Sort;
import org.springframework.transaction.annotation.EnableTransactionManagement;
import org.springframework.transaction.annotation.Transactional;
import org.springframework.transaction.support.TransactionTemplate;

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
