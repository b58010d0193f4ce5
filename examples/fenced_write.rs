//! A writer that stood still past its lease comes late, and the resource refuses it.
//!
//! A lock cannot stop what its former holder still sends. The resource can, if every write brings
//! the fencing token of its lock, and the resource remembers the largest one.

use std::{error::Error, sync::Arc, thread, time::Duration};

use distlock::{Fenced, FencingToken, LockClient, LockGuard, MemoryLock, OwnerId, Ticket};

/// What the lock protects.
#[derive(Debug, Default)]
struct Document {
    text: String,
    /// The token of the last write, and whose it was.
    last: Option<(FencingToken, OwnerId)>,
}

impl Document {
    /// Takes a write of the newest holder; of no older one, and of no other with the same token.
    fn write(&mut self, text: &str, ticket: &Ticket) -> Result<(), Fenced> {
        if let Some((newest, writer)) = self.last {
            ticket.check(newest, writer)?;
        }
        self.text = text.to_owned();
        self.last = Some((ticket.token, ticket.owner));
        Ok(())
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = Arc::new(MemoryLock::new());
    let alice = LockClient::new(store.clone());
    let bob = LockClient::new(store);
    let mut document = Document::default();

    // Nobody renews this lease, so that it ends while Alice stands still.
    let ttl = Duration::from_millis(200);
    let early = alice.lock("document").ttl(ttl).manual_renewal();
    let early: LockGuard = early.acquire().await?;
    document.write("Alice was here", &early.ticket())?;
    println!("alice writes with token {}", early.token());

    println!("alice stands still for longer than her lease");
    thread::sleep(ttl * 2);

    let guard = bob.acquire("document").await?;
    document.write("Bob was here", &guard.ticket())?;
    println!("bob   writes with token {}", guard.token());

    // Alice goes on where she was, without a look at her guard.
    match document.write("Alice is late", &early.ticket()) {
        Err(refused) => println!("alice is late: {refused}"),
        Ok(()) => return Err("the late write was taken".into()),
    }
    assert!(!early.is_held(), "a look at the guard would have told her");

    // After a fail-over that lost a grant, two owners may come with the same token.
    let carol = Ticket {
        owner: OwnerId::random(),
        ..guard.ticket()
    };
    match document.write("Carol was here", &carol) {
        Err(refused) => println!("carol is second: {refused}"),
        Ok(()) => return Err("the same token of another owner was taken".into()),
    }

    println!("the document says: {}", document.text);
    assert_eq!(document.text, "Bob was here");
    guard.release().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A12, A13: of two owners with one token, and of two tokens, the document knows one.
    #[test]
    fn a_document_refuses_older_tokens_and_equal_ones_of_others() {
        let (alice, bob) = (OwnerId::random(), OwnerId::random());
        let ticket = |token, owner| Ticket {
            key: "document".parse().unwrap(),
            token: FencingToken::new(token).unwrap(),
            owner,
        };
        let mut document = Document::default();
        document.write("first", &ticket(1, alice)).unwrap();
        document.write("again", &ticket(1, alice)).unwrap();
        document.write("same token", &ticket(1, bob)).unwrap_err();
        document.write("newer", &ticket(2, bob)).unwrap();
        document.write("older", &ticket(1, alice)).unwrap_err();
        document.write("same token", &ticket(2, alice)).unwrap_err();
        assert_eq!(document.text, "newer");
    }
}
