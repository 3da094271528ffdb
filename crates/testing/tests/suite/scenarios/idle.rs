//! An idle cluster uses almost no processor time. No other scenario sleeps for a fixed time.

use std::time::Duration;

use halite::Provider;

use super::cluster::{Cluster, Process};

/// Duration of the measurement.
const SPAN: Duration = Duration::from_secs(2);

/// Returns the user and system time of a process, in ticks of the kernel's clock.
fn ticks(process: &Process) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid())).expect("the process lives");
    // The second field is the name in parentheses, which may contain any character.
    let (_, fields) = stat.rsplit_once(')').expect("the name is in parentheses");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().expect("the field is a number")).sum()
}

#[test]
#[ignore = "measures: .ci/deep slow"]
fn an_idle_cluster_uses_little_processor_time() {
    for provider in Provider::ALL {
        let mut cluster = Cluster::new();
        cluster.config.providers = vec![provider];
        let mut processes: Vec<Process> = (0..3).map(|node| cluster.start(node)).collect();
        processes[0].run("alloc shared 65536 spread:0,1,2");
        for process in &mut processes {
            process.run("map shared");
            process.run("fill shared 65536 1");
        }
        let before: u64 = processes.iter().map(ticks).sum();
        std::thread::sleep(SPAN);
        let after: u64 = processes.iter().map(ticks).sum();
        let seconds = (after - before) as f64 / rustix::param::clock_ticks_per_second() as f64;
        let percent = 100.0 * seconds / SPAN.as_secs_f64();
        eprintln!("three idle nodes over {provider} used {percent:.1} % of a core");
        assert!(percent < 5.0, "three idle nodes over {provider} used {percent:.1} % of a core");
        for process in processes {
            process.leave();
        }
    }
}
