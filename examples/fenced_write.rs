//! A writer that stood still past its lease comes late, and the resource refuses it.
//!
//! A lock cannot stop what its former holder still sends. The resource can, if every write brings
//! the fencing token of its lock, and the resource remembers the largest one.

use std::{error::Error, fmt, sync::Arc, thread, time::Duration};

use distlock::{FencingToken, LockClient, LockGuard, MemoryLock, OwnerId};

/// What the lock protects.
#[derive(Debug, Default)]
struct Document {
    text: String,
    /// The token of the last write, and whose it was.
    last: Option<(FencingToken, OwnerId)>,
}

impl Document {
    /// Takes a write of the newest holder; of no older one, and of no other with the same token.
    fn write(&mut self, text: &str, token: FencingToken, owner: OwnerId) -> Result<(), Refused> {
        if let Some((newest, writer)) = self.last
            && (token < newest || token == newest && owner != writer)
        {
            return Err(Refused { token, newest });
        }
        self.text = text.to_owned();
        self.last = Some((token, owner));
        Ok(())
    }
}

#[derive(Debug)]
struct Refused {
    token: FencingToken,
    newest: FencingToken,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { token, newest } = self;
        write!(f, "refused: token {token}, and the last write had {newest}")
    }
}

impl Error for Refused {}

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
    document.write("Alice was here", early.token(), early.owner())?;
    println!("alice writes with token {}", early.token());

    println!("alice stands still for longer than her lease");
    thread::sleep(ttl * 2);

    let guard = bob.acquire("document").await?;
    document.write("Bob was here", guard.token(), guard.owner())?;
    println!("bob   writes with token {}", guard.token());

    // Alice goes on where she was, without a look at her guard.
    match document.write("Alice is late", early.token(), early.owner()) {
        Err(refused) => println!("alice is {refused}"),
        Ok(()) => return Err("the late write was taken".into()),
    }
    assert!(!early.is_held(), "a look at the guard would have told her");

    // After a fail-over that lost a grant, two owners may come with the same token.
    match document.write("Carol was here", guard.token(), OwnerId::random()) {
        Err(refused) => println!("carol is {refused}, by bob"),
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
        let [old, new] = [1, 2].map(|number| FencingToken::new(number).unwrap());
        let mut document = Document::default();
        document.write("first", old, alice).unwrap();
        document.write("again", old, alice).unwrap();
        document.write("same token", old, bob).unwrap_err();
        document.write("newer", new, bob).unwrap();
        document.write("older", old, alice).unwrap_err();
        document.write("same token", new, alice).unwrap_err();
        assert_eq!(document.text, "newer");
    }
}
