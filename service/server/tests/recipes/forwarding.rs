//! forward-notices.

use nix::sys::signal::Signal;
use reqwest::Client;

use crate::world::World;

#[tokio::test]
async fn notices_are_forwarded_though_the_command_fails_and_the_forwarder_is_restarted() {
    let world = World::new().await;
    let warn_after = format!("{}/v1/admin/apps/default/warn-after", world.node.base_url());
    let set = Client::new().put(warn_after).body("{\"warn_after_ms\": 100}").send().await.unwrap();
    assert_eq!(set.status(), 200);
    let tell =
        "#!/usr/bin/env bash\nmkdir failed 2>/dev/null && exit 1\necho \"told $(jq -r .kind+.key <<<\"$1\")\" >>log\n";
    world.put("tell", tell);
    let run = || world.run_with("a", "forward-notices", &["./tell"], &[("PAUSE", "0.1")]);
    let mut forwarder = run();
    world.until_there("seen").await;
    world.hold("one", "first", 0).await;
    assert_eq!(world.until_logged("told", 1).await, ["held_too_longone"]);
    assert!(world.path("failed").exists());

    forwarder.signal(Signal::SIGKILL);
    forwarder.code().await;
    world.hold("other", "second", 0).await;
    let _forwarder = run();
    assert_eq!(world.until_logged("told", 2).await, ["held_too_longone", "held_too_longother"]);
}
