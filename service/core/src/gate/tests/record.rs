use super::*;

#[test]
fn a_record_survives_being_written_and_read() {
    let mut world = world();
    let first = go(world.pre_with(|claim| {
        claim.attempt_id = Some(AttemptId::parse("job-1").unwrap());
        claim.checked = Some(Sha256Digest::of(b"100"));
    }));
    let read_back = |record: &OperationRecord| -> OperationRecord {
        serde_json::from_str(&serde_json::to_string(record).unwrap()).unwrap()
    };
    for report in [None, Some(Report::Unknown), Some(Report::Success)] {
        if let Some(report) = report {
            world.post(first.stamp, report);
        }
        let record = world.record.clone().unwrap();
        assert_eq!(read_back(&record), record);
    }
    let mut failed = self::world();
    let stamp = failed.go().stamp;
    failed.post(stamp, Report::Failure);
    let record = failed.record.unwrap();
    assert_eq!(read_back(&record), record);
}
