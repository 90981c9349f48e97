//! The Rust driver against a running server. The last line counts the tests.
use mongodb::bson::{doc, oid::ObjectId, DateTime, Document};
use mongodb::error::{Error, ErrorKind, WriteFailure};
use mongodb::options::{IndexOptions, InsertOneModel, ReturnDocument, UpdateOneModel, WriteModel};
use mongodb::sync::{Client, Collection};
use mongodb::IndexModel;
use std::time::{Duration, Instant};

mod access;

type Outcome = Result<(), Box<dyn std::error::Error>>;
type Test = (&'static str, fn(&Client, &Collection<Document>) -> Outcome);

fn want(ok: bool, what: impl std::fmt::Debug) -> Outcome {
    if ok {
        Ok(())
    } else {
        Err(format!("wrong: {what:?}").into())
    }
}

/// How long a test waits for what may hang: longer on a slow machine (golden/waits.py).
fn patience() -> Duration {
    let given = std::env::var("MAYFLY_SLOWNESS").ok().and_then(|s| s.parse().ok());
    Duration::from_secs(60).mul_f64(given.unwrap_or(1.0))
}

/// Tries again and again; the bound is a failure, not a pause.
fn until(what: &str, mut f: impl FnMut() -> Result<bool, Error>) -> Outcome {
    let end = Instant::now() + patience();
    while !f()? {
        let holds = Instant::now() < end; // clock: a deadline that only a hang misses
        want(holds, format!("waited in vain for {what}"))?;
    }
    Ok(())
}

fn crud(_: &Client, c: &Collection<Document>) -> Outcome {
    c.insert_one(doc! {"_id": 1, "name": "a", "n": 1}).run()?;
    let made = c.insert_many([doc! {"name": "b", "n": 2}, doc! {"name": "c", "n": 3}]).run()?;
    let _: ObjectId = made.inserted_ids[&0].as_object_id().ok_or("no ObjectId")?;
    let u = c.update_many(doc! {"n": {"$gte": 2}}, doc! {"$inc": {"n": 10}}).run()?;
    want(u.modified_count == 2, &u)?;
    let u = c.update_one(doc! {"_id": "new"}, doc! {"$set": {"n": 99}}).upsert(true).run()?;
    want(u.upserted_id.as_ref().and_then(|v| v.as_str()) == Some("new"), &u)?;
    let got = c
        .find_one_and_update(doc! {"name": "a"}, doc! {"$set": {"n": 5}})
        .return_document(ReturnDocument::After)
        .run()?;
    want(got.as_ref().and_then(|d| d.get_i32("n").ok()) == Some(5), &got)?;
    want(c.delete_many(doc! {"name": {"$in": ["b", "c"]}}).run()?.deleted_count == 2, "delete")?;
    want(c.count_documents(doc! {}).run()? == 2, "count")?;
    match c.insert_one(doc! {"_id": 1}).run() {
        Err(e) => match *e.kind {
            ErrorKind::Write(WriteFailure::WriteError(ref w)) => want(w.code == 11000, w),
            _ => Err(e.into()),
        },
        Ok(_) => Err("no duplicate key error".into()),
    }
}

/// The bulkWrite command of 8.0: the only bulk write of this driver.
fn bulk(client: &Client, c: &Collection<Document>) -> Outcome {
    let models: Vec<WriteModel> = vec![
        InsertOneModel::builder().namespace(c.namespace()).document(doc! {"_id": 1, "x": 1}).build().into(),
        InsertOneModel::builder().namespace(c.namespace()).document(doc! {"_id": 2}).build().into(),
        UpdateOneModel::builder()
            .namespace(c.namespace())
            .filter(doc! {"_id": 1})
            .update(doc! {"$inc": {"x": 1}})
            .build()
            .into(),
    ];
    let r = client.bulk_write(models).verbose_results().run()?;
    want(r.summary.inserted_count == 2 && r.summary.modified_count == 1, &r)?;
    want(r.update_results[&2].matched_count == 1, &r)?;
    want(c.find_one(doc! {"_id": 1}).run()? == Some(doc! {"_id": 1, "x": 2}), "updated")
}

fn cursors(_: &Client, c: &Collection<Document>) -> Outcome {
    c.insert_many((0..1000).map(|i| doc! {"_id": i, "mod": i % 7})).run()?;
    let mut last = 1000;
    let mut n = 0;
    for d in c.find(doc! {"mod": 3}).sort(doc! {"_id": -1}).batch_size(10).run()? {
        let id = d?.get_i32("_id")?;
        want(id < last, "order")?;
        last = id;
        n += 1;
    }
    want(n == 143, n)?;
    let groups = c
        .aggregate([doc! {"$group": {"_id": "$mod", "n": {"$sum": 1}}}, doc! {"$sort": {"_id": 1}}])
        .run()?
        .collect::<Result<Vec<_>, _>>()?;
    want(groups.len() == 7 && groups[0].get_i32("n")? == 143, &groups)?;
    want(c.distinct("mod", doc! {}).run()?.len() == 7, "distinct")
}

fn indexes(_: &Client, c: &Collection<Document>) -> Outcome {
    let unique = IndexOptions::builder().unique(true).build();
    let model = IndexModel::builder().keys(doc! {"a": 1, "b": -1}).options(unique).build();
    let name = c.create_index(model).run()?.index_name;
    want(name == "a_1_b_-1", &name)?;
    want(c.list_indexes().run()?.count() == 2, "two")?;
    c.drop_index(name).run()?;
    want(c.list_indexes().run()?.count() == 1, "one")
}

fn expiry(_: &Client, c: &Collection<Document>) -> Outcome {
    let options = IndexOptions::builder().expire_after(Duration::from_secs(60)).build();
    c.create_index(IndexModel::builder().keys(doc! {"at": 1}).options(options).build()).run()?;
    let now = DateTime::now();
    let old = DateTime::from_millis(now.timestamp_millis() - 120_000);
    c.insert_many([doc! {"_id": "old", "at": old}, doc! {"_id": "young", "at": now}]).run()?;
    until("the expired document to go", || Ok(c.count_documents(doc! {"_id": "old"}).run()? == 0))?;
    want(c.count_documents(doc! {"_id": "young"}).run()? == 1, "the other document went too")
}

fn sessions(client: &Client, c: &Collection<Document>) -> Outcome {
    let mut s = client.start_session().run()?;
    c.insert_many([doc! {"_id": 1}, doc! {"_id": 2}, doc! {"_id": 3}]).session(&mut s).run()?;
    let mut cursor = c.find(doc! {}).batch_size(1).session(&mut s).run()?;
    want(cursor.iter(&mut s).count() == 3, "find in a session")?;
    // A set has transactions, a single server refuses them.
    let set = client.database("admin").run_command(doc! {"hello": 1}).run()?.contains_key("setName");
    s.start_transaction().run()?;
    want(c.insert_one(doc! {"_id": 4}).session(&mut s).run().is_ok() == set, "a transaction")?;
    if set {
        s.commit_transaction().run()?;
    } else {
        let _ = s.abort_transaction().run();
    }
    want(c.count_documents(doc! {}).run()? == if set { 4 } else { 3 }, "count")
}

/// Each write fails in one of several ways at its first try, and is there once. After a broken connection drivers wait half a second.
fn retries(client: &Client, c: &Collection<Document>) -> Outcome {
    let point = |name: &str, data: Document| {
        client
            .database("admin")
            .run_command(doc! {"configureFailPoint": name, "mode": {"times": 1}, "data": data})
            .run()
    };
    c.insert_one(doc! {"_id": "sum", "n": 0}).run()?;
    for i in 0..18 {
        match i % 3 {
            // done, but the client does not hear of it
            0 => point("onPrimaryTransactionalWrite", doc! {"closeConnection": true})?,
            1 => point("failCommand", doc! {"failCommands": ["insert", "update"], "closeConnection": true})?,
            _ => point(
                "failCommand",
                doc! {"failCommands": ["insert", "update"], "errorCode": 11600, "errorLabels": ["RetryableWriteError"]},
            )?,
        };
        if i % 2 == 0 {
            c.insert_one(doc! {"v": i}).run()?;
        } else {
            c.update_one(doc! {"_id": "sum"}, doc! {"$inc": {"n": 1}}).run()?;
        }
    }
    want(c.count_documents(doc! {"v": {"$exists": true}}).run()? == 9, "lost or twice")?;
    want(c.count_documents(doc! {"_id": "sum", "n": 9}).run()? == 1, "increment lost or done twice")
}

fn main() -> Outcome {
    if let Ok(logins) = std::env::var("LOGINS") {
        return access::run(&logins);
    }
    let client = Client::with_uri_str(std::env::var("MONGODB_URI")?)?;
    let hello = client.database("admin").run_command(doc! {"hello": 1}).run()?;
    let mut tests: Vec<Test> = vec![
        ("crud", crud),
        ("bulk", bulk),
        ("cursors", cursors),
        ("indexes", indexes),
        ("expiry", expiry),
        ("sessions", sessions),
    ];
    if hello.contains_key("setName") {
        tests.push(("retries", retries));
    }
    let db = client.database("driver_rust");
    let (mut passed, mut failed) = (0, 0);
    for (name, run) in tests {
        let c = db.collection::<Document>(name);
        match c.drop().run().map_err(Into::into).and_then(|()| run(&client, &c)) {
            Ok(()) => passed += 1,
            Err(e) => {
                failed += 1;
                println!("FAIL {name}: {e}");
            }
        }
    }
    db.drop().run()?;
    println!("{passed} passed, {failed} failed");
    std::process::exit(i32::from(failed > 0));
}
