//! The tables of failures and their tests in docs/failures.md are what the tests say of
//! themselves: in a test's name, or in the comment above it, stand the ids of the failures and of
//! the cases from the field that it is about (`failures.txt`, `field-cases.txt`).
//!
//! `UPDATE=1 cargo test -p integration-tests --test catalogue` writes the tables anew.

#![allow(clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
};

#[test]
fn the_page_of_failures_is_up_to_date() {
    let root = root();
    let page = root.join("docs/failures.md");
    let text = fs::read_to_string(&page).unwrap();
    let tests = tests_by_id(&root);
    let mut fresh = text.clone();
    for list in ["failures", "field-cases"] {
        let (head, rest) = fresh.split_once(&begin_of(list)).expect("a table's begin");
        let (_, tail) = rest.split_once(END).expect("a table's end");
        let table = table(&root, list, &tests);
        fresh = format!("{head}{}{table}{END}{tail}", begin_of(list));
    }

    if env::var_os("UPDATE").is_some() {
        fs::write(page, fresh).unwrap();
    } else {
        assert!(
            text == fresh,
            "docs/failures.md is behind the tests: \
             run `UPDATE=1 cargo test -p integration-tests --test catalogue`"
        );
    }
}

fn begin_of(list: &str) -> String {
    format!("<!-- {list}: written by integration-tests/tests/catalogue.rs -->\n")
}

const END: &str = "<!-- end of table -->";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The rows of a list with links to their tests.
fn table(root: &Path, list: &str, tests: &BTreeMap<Id, Vec<String>>) -> String {
    let rows = fs::read_to_string(root.join(format!("integration-tests/{list}.txt"))).unwrap();
    let mut table = "\n| id | what happens | tests |\n| --- | --- | --- |\n".to_owned();
    for line in rows.lines() {
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        let (word, what) = line.split_once(' ').expect("an id and what happens");
        let id = Id::parse(word).expect("an id");
        let id = if list == "failures" { id } else { id.as_case() };
        let links = match tests.get(&id) {
            Some(links) => links.join("; "),
            None => "**missing**".to_owned(),
        };
        table += &format!("| {word} | {what} | {links} |\n");
    }
    table + "\n"
}

fn tests_by_id(root: &Path) -> BTreeMap<Id, Vec<String>> {
    let mut tests = BTreeMap::<Id, Vec<String>>::new();
    for path in sources(root) {
        let text = fs::read_to_string(&path).unwrap();
        let path = path.strip_prefix(root).unwrap().to_str().unwrap();
        for test in tests_in(&text, path.contains("/conformance/")) {
            for id in test.ids {
                let link = format!("[{}](../{path})", test.name.replace('_', " "));
                tests.entry(id).or_default().push(link);
            }
        }
    }
    tests
}

/// The id of a failure, such as A18, or of a case from the field, such as B04.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Id(char, u8);

impl Id {
    fn parse(word: &str) -> Option<Self> {
        let mut chars = word.chars();
        let section = chars.next().filter(|c| ('A'..='E').contains(c))?;
        let number = chars.as_str();
        let is_number = number.chars().all(|c| c.is_ascii_digit());
        Some(Self(section, number.parse().ok().filter(|_| is_number)?))
    }

    /// Cases and failures of Redis have the same letter.
    fn as_case(self) -> Self {
        Self(self.0.to_ascii_lowercase(), self.1)
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
///
/// A number with B alone is a case from the field; `row B5` is a failure.
fn ids_in(text: &str) -> Vec<Id> {
    let mut ids = Vec::new();
    let (mut is_range, mut is_row) = (false, false);
    let words = text.split(|c: char| c.is_whitespace() || ",;.:()[]`_/".contains(c));
    for word in words.filter(|word| !word.is_empty()) {
        let (from, to) = word.split_once(['-', '–']).unwrap_or((word, ""));
        match (Id::parse(from), Id::parse(to)) {
            (Some(first), last) => {
                let last = last.unwrap_or(first);
                let first = match ids.last() {
                    Some(&Id(section, number)) if is_range && section == first.0 => number + 1,
                    _ => first.1,
                };
                let range = (first..=last.1).map(|number| Id(last.0, number));
                if last.0 == 'B' && !is_row {
                    ids.extend(range.map(Id::as_case));
                } else {
                    ids.extend(range);
                }
            }
            _ if !["to", "and"].contains(&word) => {
                is_row = ["row", "rows"].contains(&word.to_lowercase().as_str());
            }
            _ => {}
        }
        is_range = word == "to";
    }
    ids.sort();
    ids.dedup();
    ids
}

#[test]
fn ids_are_found_in_comments_and_names() {
    let source = "
        /// Nothing is left behind. Clause 12; A1, A5 to A7,
        /// B04, B12 (and D2-D3). Rows B5, B6 and B8.
        #[tokio::test]
        async fn nothing_is_left_a18_row_b9() {
            // A9 is inside, and not found.
        }

        // A10
        fn no_test() {}
    ";
    let ids = [
        "A1", "A5", "A6", "A7", "A18", "B5", "B6", "B8", "B9", "D2", "D3",
    ];
    let mut ids = ids.map(|id| Id::parse(id).unwrap()).to_vec();
    ids.extend([Id('b', 4), Id('b', 12)]);
    let name = "nothing_is_left_a18_row_b9".to_owned();
    assert_eq!(tests_in(source, false), [Test { name, ids }]);
}
