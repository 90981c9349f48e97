import com.mongodb.MongoCommandException;
import com.mongodb.MongoException;
import com.mongodb.MongoSecurityException;
import com.mongodb.client.*;
import com.mongodb.client.model.*;
import org.bson.Document;

import java.util.*;

/**
 * Logins of the Java driver, over TLS: what with_access.py gives in the environment. Certificates come from the stores
 * that JAVA_LOGIN_OPTIONS names; the driver does not read the files that other drivers' URIs name.
 */
public class AccessTest {
    static int passed, failed;

    static void check(boolean ok, String what) {
        if (ok) passed++;
        else {
            failed++;
            System.out.println("FAIL " + what);
        }
    }

    static MongoClient connect(String uri) {
        return MongoClients.create(uri.replaceAll("tls(CA|CertificateKey)File=[^&]*&?", "").replaceAll("&$", ""));
    }

    static void asUser(String name, String uri) {
        try (MongoClient client = connect(uri)) {
            Document who = client.getDatabase("admin").runCommand(new Document("connectionStatus", 1));
            check(who.get("authInfo", Document.class).getList("authenticatedUsers", Document.class).size() == 1, name + ": " + who);
            var c = client.getDatabase("access_java").getCollection(name);
            c.drop();
            List<Document> documents = new ArrayList<>();
            for (int i = 0; i < 300; i++) documents.add(new Document("_id", i).append("v", i % 10));
            c.insertMany(documents);
            int n = 0;
            for (Document d : c.find(Filters.lt("v", 5)).batchSize(7)) n++;
            check(n == 150, name + ": a cursor of many batches");
            n = 0;
            for (Document d : c.aggregate(List.of(Aggregates.group("$v", Accumulators.sum("n", 1)))).batchSize(3)) n += d.getInteger("n");
            check(n == 300, name + ": an aggregation");
            try (ClientSession session = client.startSession()) {
                check(c.updateMany(session, Filters.eq("v", 1), Updates.inc("n", 1)).getModifiedCount() == 30, name + ": a session");
            }
        } catch (MongoException e) {
            check(false, name + ": " + e);
        }
    }

    /** The server's code for a client of this URI; 0: it is let in. */
    static int refusal(String uri) {
        try (MongoClient client = connect(uri)) {
            client.getDatabase("access_java").runCommand(new Document("find", "things"));
            return 0;
        } catch (MongoSecurityException e) {
            return e.getCause() instanceof MongoCommandException c ? c.getErrorCode() : -1;
        } catch (MongoException e) {
            return e.getCode();
        }
    }

    public static void main(String[] args) {
        for (String line : System.getenv("LOGINS").split("\n")) asUser(line.split(" ")[0], line.split(" ")[1]);
        check(refusal(System.getenv("WRONG_LOGIN")) == 18, "a wrong password");
        check(refusal(System.getenv("NO_LOGIN")) == 13, "no login");
        System.out.println("java: " + passed + " passed, " + failed + " failed");
        System.exit(failed > 0 ? 1 : 0);
    }
}
