//! Logins, over TLS: what with_access.py gives in the environment.
use crate::{crud, cursors, sessions, want, Outcome, Test};
use mongodb::bson::doc;
use mongodb::error::ErrorKind;
use mongodb::sync::Client;

fn as_user(uri: &str) -> Outcome {
    let client = Client::with_uri_str(uri)?;
    let who = client.database("admin").run_command(doc! {"connectionStatus": 1}).run()?;
    want(who.get_document("authInfo")?.get_array("authenticatedUsers")?.len() == 1, &who)?;
    let db = client.database("access_rust");
    let tests: [Test; 3] = [("crud", crud), ("cursors", cursors), ("sessions", sessions)];
    for (name, run) in tests {
        let c = db.collection(name);
        c.drop().run()?;
        run(&client, &c).map_err(|e| format!("{name}: {e}"))?;
    }
    Ok(db.drop().run()?)
}

/// A client of this URI is told this code. The driver keeps a failed login's code in the error that
/// is the source of its own.
fn refused(uri: &str, code: i32) -> Outcome {
    let client = Client::with_uri_str(uri)?;
    let Err(e) = client.database("access_rust").run_command(doc! {"find": "things"}).run() else {
        return Err("let in".into());
    };
    let mut at: Option<&(dyn std::error::Error + 'static)> = Some(&e);
    while let Some(error) = at {
        if let Some(known) = error.downcast_ref::<mongodb::error::Error>() {
            if let ErrorKind::Command(ref c) = *known.kind {
                return want(c.code == code, c);
            }
        }
        at = error.source();
    }
    want(code == 18 && matches!(*e.kind, ErrorKind::Authentication { .. }), &e)
}

pub fn run(logins: &str) -> Outcome {
    let (mut passed, mut failed) = (0, 0);
    let mut count = |name: &str, outcome: Outcome| match outcome {
        Ok(()) => passed += 1,
        Err(e) => {
            failed += 1;
            println!("FAIL {name}: {e}");
        }
    };
    for line in logins.lines() {
        let (name, uri) = line.split_once(' ').ok_or("a login without a URI")?;
        count(name, as_user(uri));
    }
    count("a wrong password", refused(&std::env::var("WRONG_LOGIN")?, 18));
    count("no login", refused(&std::env::var("NO_LOGIN")?, 13));
    println!("rust: {passed} passed, {failed} failed");
    std::process::exit(i32::from(failed > 0));
}
