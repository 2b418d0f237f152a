//! Multilocks over HTTP.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use latchgate_testkit::node::Node;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use reqwest::Client;
use serde_json::{Value, json};

use crate::client::{Answer, embedded, granted, inspect, leases, many, release, send, two_nodes, until_waiting, verb};

fn keys(keys: &[&str]) -> Value {
    keys.iter().map(|key| json!({ "key": key })).collect()
}

#[tokio::test]
async fn many_locks_are_taken_renewed_and_released_as_one() {
    let node = embedded().await;
    let locks = json!([{ "key": "a" }, { "key": "b/c", "mode": "shared" }, { "key": "d", "mode": "permits", "permits": 2, "limit": 3 }]);
    let request = json!({ "locks": locks, "owner": "me", "lease_id": "mine", "ttl_ms": 20_000 });
    let grant = many(&node, "acquire", request.clone()).await;
    assert_eq!(grant.status, 200, "{}", grant.body);
    assert_eq!((grant.text("lease_id"), grant.text("owner")), ("mine".to_owned(), "me".to_owned()));
    let answers = grant.body["locks"].as_array().unwrap();
    assert_eq!((&answers[1]["key"], &answers[1]["mode"]), (&json!("b/c"), &json!("shared")));
    assert_eq!((&answers[2]["permits"], &answers[2]["limit"]), (&json!(2), &json!(3)));
    for (key, answer) in [("a", &answers[0]), ("b%2Fc", &answers[1]), ("d", &answers[2])] {
        assert_eq!(inspect(&node, key).await["holders"][0]["token"], answer["token"]);
    }
    assert_eq!(
        many(&node, "acquire", request).await.body["locks"],
        grant.body["locks"],
        "a repetition gets the same leases"
    );

    let mut named = leases("mine", &["a", "b/c", "d"]);
    let released = named.clone();
    named["leases"].as_array_mut().unwrap().iter_mut().for_each(|lease| lease["ttl_ms"] = json!(60_000));
    let renewed = many(&node, "renew", named).await;
    assert_eq!(renewed.status, 200, "{}", renewed.body);
    let results = renewed.body["results"].as_array().unwrap();
    assert!(results.len() == 3 && results.iter().all(|result| result["ttl_ms"].as_u64() > Some(30_000)));
    assert_eq!(many(&node, "release", released.clone()).await.status, 200);
    let again = many(&node, "release", released).await;
    assert_eq!((again.status.as_u16(), &again.body["results"][2]["already"]), (200, &json!(true)));
}

#[tokio::test]
async fn a_refusal_names_the_key_and_nothing_is_held() {
    let node = embedded().await;
    granted(&node, "b", json!({ "owner": "holder" })).await;
    let refused = many(&node, "acquire", json!({ "locks": keys(&["a", "b"]) })).await;
    refused.assert_problem(423, "lock-held");
    assert_eq!((&refused.body["key"], &refused.body["holders"][0]["owner"]), (&json!("b"), &json!("holder")));
    let waited = many(&node, "acquire", json!({ "locks": keys(&["a", "b"]), "wait_ms": 100 })).await;
    waited.assert_problem(423, "wait-timeout");
    assert!(waited.body["ticket"].is_string() && waited.body["waited_ms"].as_u64() >= Some(100), "{}", waited.body);
    assert_eq!(inspect(&node, "a").await["held"], false);
    until_waiting(&node, "b", 0).await;
}

#[tokio::test]
async fn lost_leases_are_named_and_the_rest_is_released() {
    let node = embedded().await;
    let grant = many(&node, "acquire", json!({ "locks": keys(&["a", "b"]), "lease_id": "mine" })).await;
    assert_eq!(grant.status, 200);
    crate::client::request(&node, reqwest::Method::DELETE, "/v1/locks/b", json!({})).await;
    let next = granted(&node, "b", json!({})).await;
    let named = leases("mine", &["a", "b"]);
    for verb in ["renew", "release"] {
        let lost = many(&node, verb, named.clone()).await;
        lost.assert_problem(410, "lease-lost");
        let results = lost.body["results"].as_array().unwrap();
        assert_eq!((&results[0]["key"], &results[0]["status"]), (&json!("a"), &json!(200)));
        assert_eq!((&results[1]["key"], &results[1]["why"]), (&json!("b"), &json!("forced")));
        assert!(!lost.body.to_string().contains(&next.token().to_string()), "{}", lost.body);
        assert_eq!(inspect(&node, "a").await["held"], verb == "renew", "after {verb}");
    }
}

#[tokio::test]
async fn a_renewal_shows_a_revocation() {
    let node = embedded().await;
    many(&node, "acquire", json!({ "locks": keys(&["a", "b"]), "lease_id": "mine" })).await;
    verb(&node, "b", "revoke", json!({ "reason": "deploy", "grace_ms": 20_000 })).await;
    let renewed = many(&node, "renew", leases("mine", &["a", "b"])).await;
    let [free, revoked] = [0, 1].map(|index| &renewed.body["results"][index]);
    assert_eq!((&free["revocation"], &revoked["revocation"]["reason"]), (&Value::Null, &json!("deploy")));
    assert!(revoked["ttl_ms"].as_u64().unwrap() <= 20_000, "{}", renewed.body);
}

#[tokio::test]
async fn a_ticket_returns_a_multilock_to_its_position() {
    let node = embedded().await;
    let holder = granted(&node, "b", json!({})).await;
    let request = json!({ "locks": keys(&["a", "b"]), "owner": "first", "wait_ms": 100 });
    let ticket = many(&node, "acquire", request).await.text("ticket");
    let url = format!("{}/v1/multilocks/acquire", node.base_url());
    let mut waiting = Vec::new();
    for request in [json!({ "owner": "second" }), json!({ "owner": "first", "ticket": ticket })] {
        let mut request = request;
        request["locks"] = keys(&["a", "b"]);
        request["wait_ms"] = json!(20_000);
        let request = Client::new().post(&url).body(request.to_string());
        waiting.push(tokio::spawn(send(request)));
        until_waiting(&node, "b", waiting.len() as u64).await;
    }
    release(&node, "b", &holder.text("lease_id")).await;
    let (second, first) = (waiting.remove(0), waiting.remove(0));
    let first = first.await.unwrap();
    assert_eq!((first.status.as_u16(), first.text("owner")), (200, "first".to_owned()));
    many(&node, "release", leases(&first.text("lease_id"), &["a", "b"])).await;
    assert_eq!(second.await.unwrap().text("owner"), "second");
}

const KEYS: usize = 64;
/// How many times each multilock client takes all keys, while other clients take single keys.
const ROUNDS: usize = 4;
const SINGLES: u64 = 4;

/// The resource behind each key, and the nodes.
struct Contention {
    urls: [String; 2],
    client: Client,
    inside: [AtomicBool; KEYS],
    singles: AtomicUsize,
    is_over: AtomicBool,
}

impl Contention {
    fn new(one: &Node, other: &Node) -> Arc<Self> {
        Arc::new(Self {
            urls: [one.base_url(), other.base_url()],
            client: Client::new(),
            inside: std::array::from_fn(|_| AtomicBool::new(false)),
            singles: AtomicUsize::new(0),
            is_over: AtomicBool::new(false),
        })
    }

    /// Posts to a random node.
    async fn post(&self, random: &mut StdRng, path: &str, body: Value) -> Answer {
        let url = format!("{}{path}", self.urls[random.random_range(0..2)]);
        let answer = send(self.client.post(url).body(body.to_string())).await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer
    }

    fn enter(&self, key: usize) {
        assert!(!self.inside[key].swap(true, Ordering::SeqCst), "two hold key {key}");
    }

    fn leave(&self, key: usize) {
        self.inside[key].store(false, Ordering::SeqCst);
    }

    async fn take_one(&self, random: &mut StdRng) {
        let key = random.random_range(0..KEYS);
        let grant = self.post(random, &format!("/v1/locks/{key}/acquire"), json!({ "wait_ms": 50_000 })).await;
        self.enter(key);
        tokio::task::yield_now().await;
        self.leave(key);
        let lease_id = json!({ "lease_id": grant.text("lease_id") });
        self.post(random, &format!("/v1/locks/{key}/release"), lease_id).await;
        self.singles.fetch_add(1, Ordering::SeqCst);
    }

    async fn take_all(&self, random: &mut StdRng) {
        let mut order: Vec<String> = (0..KEYS).map(|key| key.to_string()).collect();
        order.shuffle(random);
        let locks: Value = order.iter().map(|key| json!({ "key": key })).collect();
        let grant = self.post(random, "/v1/multilocks/acquire", json!({ "locks": locks, "wait_ms": 50_000 })).await;
        (0..KEYS).for_each(|key| self.enter(key));
        tokio::task::yield_now().await;
        (0..KEYS).for_each(|key| self.leave(key));
        let keys: Vec<&str> = order.iter().map(String::as_str).collect();
        self.post(random, "/v1/leases/release", leases(&grant.text("lease_id"), &keys)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn multilocks_of_64_keys_are_granted_among_requests_for_one_key() {
    let (one, other) = two_nodes().await;
    let contention = Contention::new(&one, &other);
    let mut tasks = Vec::new();
    for seed in 0..SINGLES {
        let contention = Arc::clone(&contention);
        tasks.push(tokio::spawn(async move {
            let mut random = StdRng::seed_from_u64(seed);
            while !contention.is_over.load(Ordering::SeqCst) {
                contention.take_one(&mut random).await;
            }
        }));
    }
    let multilocks = [SINGLES, SINGLES + 1].map(|seed| {
        let contention = Arc::clone(&contention);
        tokio::spawn(async move {
            let mut random = StdRng::seed_from_u64(seed);
            for _ in 0..ROUNDS {
                let before = contention.singles.load(Ordering::SeqCst);
                contention.take_all(&mut random).await;
                let goes_on = || async { contention.singles.load(Ordering::SeqCst) > before };
                assert!(latchgate_testkit::eventually(Duration::from_secs(30), goes_on).await);
            }
        })
    });
    for multilock in multilocks {
        multilock.await.unwrap();
    }
    contention.is_over.store(true, Ordering::SeqCst);
    for task in tasks {
        task.await.unwrap();
    }
    for key in 0..KEYS {
        let lock = inspect(&one, &key.to_string()).await;
        assert_eq!((&lock["held"], &lock["waiters"]), (&json!(false), &json!(0)), "key {key}");
    }
}
