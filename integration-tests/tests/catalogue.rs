//! The table of failures and their tests in docs/guarantees.md is what the tests say of
//! themselves: in a test's name, or in the comment above it, stand the ids of the failures that
//! it is about (`failures.txt`).
//!
//! `UPDATE=1 cargo test -p integration-tests --test catalogue` writes the table anew.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    env, fmt, fs,
    path::{Path, PathBuf},
};

const BEGIN: &str = "<!-- failures: written by integration-tests/tests/catalogue.rs -->\n";
const END: &str = "<!-- end of failures -->";

#[test]
fn the_table_of_failures_is_up_to_date() {
    let root = root();
    let page = root.join("docs/guarantees.md");
    let text = fs::read_to_string(&page).unwrap();
    let (head, rest) = text.split_once(BEGIN).expect("the table's begin");
    let (_, tail) = rest.split_once(END).expect("the table's end");
    let fresh = format!("{head}{BEGIN}{}{END}{tail}", table(&root));

    if env::var_os("UPDATE").is_some() {
        fs::write(page, fresh).unwrap();
    } else {
        assert!(
            text == fresh,
            "docs/guarantees.md is behind the tests: \
             run `UPDATE=1 cargo test -p integration-tests --test catalogue`"
        );
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn table(root: &Path) -> String {
    let mut tests = BTreeMap::<Id, Vec<String>>::new();
    for path in sources(root) {
        let text = fs::read_to_string(&path).unwrap();
        let path = path.strip_prefix(root).unwrap().to_str().unwrap();
        for test in tests_in(&text, path.contains("/conformance/")) {
            for id in test.ids.into_iter().filter(|id| id.may_stand_in(path)) {
                let link = format!("[{}](../{path})", test.name.replace('_', " "));
                tests.entry(id).or_default().push(link);
            }
        }
    }

    let failures = fs::read_to_string(root.join("integration-tests/failures.txt")).unwrap();
    let mut table = "\n| row | failure | tests |\n| --- | --- | --- |\n".to_owned();
    for line in failures.lines() {
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        let (id, failure) = line.split_once(' ').expect("an id and a failure");
        let id = Id::parse(id).expect("an id");
        if !root.join(id.needs()).exists() {
            continue;
        }
        let links = match tests.get(&id) {
            Some(links) => links.join("; "),
            None => "**missing**".to_owned(),
        };
        table += &format!("| {id} | {failure} | {links} |\n");
    }
    table + "\n"
}

/// The id of a failure, such as A18.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id(char, u8);

impl Id {
    fn parse(word: &str) -> Option<Self> {
        let mut chars = word.chars();
        let section = chars.next().filter(|c| ('A'..='E').contains(c))?;
        let number = chars.as_str();
        let is_number = number.chars().all(|c| c.is_ascii_digit()) && !number.starts_with('0');
        Some(Self(section, number.parse().ok().filter(|_| is_number)?))
    }

    /// What has to be in the repository for the failure to be possible.
    fn needs(self) -> &'static str {
        match self.0 {
            'A' => "lock-core",
            'B' | 'C' => "lock-redis",
            'D' => "lock-postgres",
            _ => "lock-etcd",
        }
    }

    /// Elsewhere than with Redis a B and a number is a case from the field, not a row.
    fn may_stand_in(self, path: &str) -> bool {
        self.0 != 'B' || path.contains("redis")
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.0, self.1)
    }
}

/// The sources of the repository, in order.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    let mut found = Vec::new();
    for path in entries {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            found.extend(sources(&path));
        } else if name.ends_with(".rs") && !file!().ends_with(name) {
            found.push(path);
        }
    }
    found
}

#[derive(Debug, PartialEq)]
struct Test {
    name: String,
    ids: Vec<Id>,
}

/// The tests of one file. In the conformance suite every public function is one.
fn tests_in(text: &str, is_suite: bool) -> Vec<Test> {
    let mut tests = Vec::new();
    let mut above = String::new();
    let mut is_test = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("//") {
            above += line.trim_start_matches(['/', '!', ' ']);
            above.push('\n');
        } else if line.starts_with("#[") {
            is_test |= line.contains("test");
        } else {
            if let Some(name) = function(line)
                && (is_test || is_suite && line.starts_with("pub async"))
            {
                let ids = ids_in(&format!("{above} {}", name.to_uppercase()));
                tests.push(Test {
                    name: name.to_owned(),
                    ids,
                });
            }
            above.clear();
            is_test = false;
        }
    }
    tests
}

/// The name of the function that begins in this line.
fn function(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_head = before
        .split_whitespace()
        .all(|word| word.starts_with("pub") || word == "async");
    let end = after.find(['(', '<'])?;
    is_head.then(|| &after[..end])
}

/// The ids in a text; `A5 to A8` and `A5-A8` are four.
fn ids_in(text: &str) -> Vec<Id> {
    let mut ids = Vec::new();
    let mut range = false;
    for word in text.split(|c: char| c.is_whitespace() || ",;.:()[]`_/".contains(c)) {
        let (from, to) = match word.split_once(['-', '–']) {
            Some((from, to)) => (Id::parse(from), Id::parse(to)),
            None => (Id::parse(word), None),
        };
        match (from, to, ids.last()) {
            (Some(from), Some(to), _) => ids.extend((from.1..=to.1).map(|n| Id(from.0, n))),
            (Some(to), None, Some(&Id(section, last))) if range && section == to.0 => {
                ids.extend((last + 1..=to.1).map(|n| Id(section, n)));
            }
            (Some(id), None, _) => ids.push(id),
            _ => {}
        }
        if !word.is_empty() {
            range = word == "to";
        }
    }
    ids.sort();
    ids.dedup();
    ids
}

#[test]
fn ids_are_found_in_comments_and_names() {
    let source = "
        /// Nothing is left behind. Clause 12; A1, A5 to A7,
        /// B04 (and D2-D3).
        #[tokio::test]
        async fn nothing_is_left_a18() {
            // A9 is inside, and not found.
        }

        // A10
        fn no_test() {}
    ";
    let ids = ["A1", "A5", "A6", "A7", "A18", "D2", "D3"];
    let ids = ids.map(|id| Id::parse(id).unwrap()).to_vec();
    let name = "nothing_is_left_a18".to_owned();
    assert_eq!(tests_in(source, false), [Test { name, ids }]);
}
