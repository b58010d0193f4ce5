//! The same random history against the store in memory and against a file.

use integration_tests::model::{HandOver, compare};

use crate::support::File;

/// The reference model and SQLite give the same answers, contract clauses 1 to 4, 7 and 8.
#[tokio::test]
async fn sqlite_answers_as_the_model_does() {
    let file = File::new();
    let (store, other) = (file.store().await, file.store().await);
    compare(&store, &other, HandOver::Reserves, 60).await;
}
