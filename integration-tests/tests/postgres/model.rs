//! The same random history against the store in memory and against Postgres.

use integration_tests::model::{HandOver, compare};

use crate::support::Place;

/// The reference model and Postgres give the same answers, contract clauses 1 to 4, 7 and 8.
#[tokio::test]
async fn postgres_answers_as_the_model_does() {
    let place = Place::shared();
    let (store, other) = (place.store().await, place.store().await);
    compare(&*store, &*other, HandOver::Reserves, 60).await;
}
