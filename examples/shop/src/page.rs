//! The pages: one that lists the articles, and one for each answer. No script is needed.

use maud::{DOCTYPE, Markup, html};

use crate::stock::Article;

const STYLE: &str = "
    body { font: 1.1rem/1.5 system-ui, sans-serif; max-width: 34rem; margin: 3rem auto; padding: 0 1rem; color: #222; }
    table { width: 100%; border-collapse: collapse; }
    td, th { padding: .6rem .4rem; border-bottom: 1px solid #ddd; text-align: left; }
    :is(td, th):nth-child(2) { text-align: right; font-variant-numeric: tabular-nums; }
    button { font: inherit; padding: .25rem 1rem; border: 1px solid #246; border-radius: .3rem; background: #246; color: #fff; }
    button:disabled { background: #eee; color: #888; border-color: #ccc; }
    footer { margin-top: 2rem; color: #666; font-size: .9rem; }
    @media (prefers-color-scheme: dark) { body { background: #181a1b; color: #ddd; } td, th { border-color: #444; } }
";

pub(crate) fn front(articles: &[Article], store: &str) -> Markup {
    page(html! {
        h1 { "Shop" }
        table {
            tr { th { "Article" } th { "Left" } th {} }
            @for article in articles {
                tr {
                    td { (article.name) }
                    td { (article.left) }
                    td {
                        form method="post" action={ "/buy/" (article.id) } {
                            button disabled[article.left <= 0] { "Buy" }
                        }
                    }
                }
            }
        }
        footer { "The locks are in " (store) ". " a href="/metrics" { "Metrics" } }
    })
}

pub(crate) fn message(text: &str) -> Markup {
    page(html! {
        h1 { (text) }
        p { a href="/" { "Back to the shop" } }
    })
}

fn page(body: Markup) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Shop" }
                style { (maud::PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    }
}
