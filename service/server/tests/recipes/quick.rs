//! docs/programs/quick.*: first programs in languages that have no client.

use tokio::process::Command;

use crate::book::REPOSITORY;
use crate::world::World;

const PROGRAMS: [(&str, &str); 2] = [("php", "quick.php"), ("ruby", "quick.rb")];

#[tokio::test]
async fn a_second_run_of_a_first_program_prints_the_result_of_the_first() {
    let world = World::new().await;
    for (interpreter, program) in PROGRAMS {
        for end in ["done now\n", "done earlier\n"] {
            let path = format!("{REPOSITORY}/docs/programs/{program}");
            let ran = Command::new(interpreter).arg(path).env("LATCHGATE_URL", world.node.base_url()).output().await;
            let Ok(ran) = ran else {
                eprintln!("{program} is not run: there is no {interpreter}");
                break;
            };
            let printed = String::from_utf8(ran.stdout).unwrap();
            let is_right = printed.starts_with("working with token ") && printed.ends_with(end);
            assert!(ran.status.success() && is_right, "{program}: {printed}{}", String::from_utf8_lossy(&ran.stderr));
        }
    }
}

#[tokio::test]
async fn a_first_program_refuses_a_url_that_is_set_and_empty() {
    for (interpreter, program) in PROGRAMS {
        let path = format!("{REPOSITORY}/docs/programs/{program}");
        let Ok(ran) = Command::new(interpreter).arg(path).env("LATCHGATE_URL", "").output().await else {
            eprintln!("{program} is not run: there is no {interpreter}");
            continue;
        };
        let said = String::from_utf8_lossy(&ran.stderr);
        assert!(!ran.status.success() && said.contains("LATCHGATE_URL is set and empty"), "{program}: {said}");
    }
}
