//! From a URL to a store, or to an error that helps.

use distlock::{Error, connect, open};

#[tokio::test]
async fn memory_is_always_there() {
    for url in ["memory:", "memory://", "MEMORY:"] {
        let client = connect(url).await.unwrap();
        let guard = client.try_acquire("k").await.unwrap();
        guard.release().await.unwrap();
    }
    // A store of its own for every caller.
    let (one, two) = (
        connect("memory:").await.unwrap(),
        connect("memory:").await.unwrap(),
    );
    let _guard = one.try_acquire("k").await.unwrap();
    drop(two.try_acquire("k").await.unwrap());
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn sqlite_is_shared_through_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite://{}", folder.path().join("locks.db").display());
    let (one, two) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    let guard = one.try_acquire("k").await.unwrap();
    let busy = two.try_acquire("k").await.unwrap_err();
    assert!(matches!(busy, Error::Busy { .. }), "{busy}");
    guard.release().await.unwrap();
    assert_eq!(open(&url).await.unwrap().capabilities().store, "sqlite");
}

/// A38: what cannot be used is refused at once, by name.
#[tokio::test]
async fn a_store_that_is_not_compiled_in_names_its_feature() {
    let stores = [
        ("sqlite:", "sqlite", cfg!(feature = "sqlite")),
        ("redis://h", "redis", cfg!(feature = "redis")),
        ("REDISS://h", "redis", cfg!(feature = "redis")),
        ("unix:///s", "redis", cfg!(feature = "redis")),
        ("postgres://h/d", "postgres", cfg!(feature = "postgres")),
        ("postgresql://h/d", "postgres", cfg!(feature = "postgres")),
        ("etcd://h", "etcd", cfg!(feature = "etcd")),
    ];
    for (url, feature, is_there) in stores {
        if is_there {
            continue;
        }
        let error = open(url).await.unwrap_err();
        assert!(
            matches!(error, Error::InvalidConfig { .. }),
            "{url}: {error}"
        );
        assert!(
            error.to_string().contains(&format!("feature `{feature}`")),
            "{url}: {error}"
        );
    }
}

#[tokio::test]
async fn an_unknown_scheme_lists_the_known_ones() {
    for url in ["mysql://h", "", "k", "//", "memory", "http:"] {
        let error = open(url).await.unwrap_err();
        assert!(
            matches!(error, Error::InvalidConfig { .. }),
            "{url}: {error}"
        );
        for scheme in [
            "memory:",
            "sqlite:",
            "redis:",
            "rediss:",
            "postgres:",
            "postgresql:",
            "etcd:",
        ] {
            assert!(error.to_string().contains(scheme), "{url}: {error}");
        }
    }
}

/// B112, B14: a server that is not there is an error of the store, which may pass, and names it.
#[cfg(feature = "redis")]
#[tokio::test]
async fn a_redis_that_is_not_there_is_named() {
    let error = connect("redis://:geheim@127.0.0.1:1/0").await.unwrap_err();
    assert!(error.is_retryable(), "{error}");
    let text = format!("{error} {error:?}");
    assert!(
        text.contains("127.0.0.1:1") && !text.contains("geheim"),
        "{text}"
    );
    let error = connect("redis://:geheim@127.0.0.1:1/x").await.unwrap_err();
    assert!(matches!(error, Error::InvalidConfig { .. }), "{error}");
    assert!(!format!("{error} {error:?}").contains("geheim"));
}

#[tokio::test]
async fn secrets_stay_out_of_errors() {
    for url in [
        "mysql://u:geheim@h",
        "geheim",
        "geheim:x",
        "memory:geheim",
        "u:geheim@h",
    ] {
        let error = open(url).await.unwrap_err();
        assert!(!format!("{error} {error:?}").contains("geheim"), "{error}");
    }
}
