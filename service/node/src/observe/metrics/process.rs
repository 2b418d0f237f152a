//! The process, as the kernel shows it in `/proc`: under the names that Prometheus uses for any process.

use std::fs;

use nix::sys::resource::{Resource, getrlimit};

use super::page::Page;

/// Linux gives times to programs in 1/100 s, whatever its own clock is.
const TICKS_PER_SECOND: f64 = 100.0;

/// This process.
#[derive(Debug)]
pub struct Process;

impl Process {
    pub fn encode(&self, page: &mut Page<'_>) {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The name before them may have spaces and brackets. The first field after it is the third of the kernel's list.
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap_or_default().1.split(' ').collect();
        let field = |number: usize| fields.get(number - 3).and_then(|text| text.parse::<f64>().ok()).unwrap_or(0.0);
        let cpu_s = (field(14) + field(15)) / TICKS_PER_SECOND;
        page.counters("process_cpu_seconds", "CPU time of this process.").count(&[], cpu_s);
        page.gauge("process_threads", "Threads.", field(20));
        // The machine was started at `btime`, in Unix time.
        let started_s = value_in("/proc/stat", "btime") + field(22) / TICKS_PER_SECOND;
        page.gauge("process_start_time_seconds", "When this process was started, in Unix time.", started_s);
        page.gauge("process_virtual_memory_bytes", "Virtual memory.", field(23));
        page.gauge(
            "process_resident_memory_bytes",
            "Memory in use.",
            value_in("/proc/self/status", "VmRSS:") * 1_024.0,
        );
        let open = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        page.gauge("process_open_fds", "Open file descriptors.", open);
        let (limit, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or_default();
        page.gauge("process_max_fds", "Most file descriptors that may be open.", limit);
    }
}

/// The number behind `name` at the beginning of a line.
fn value_in(file: &str, name: &str) -> f64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_shows_every_figure_of_the_process() {
        let page = super::super::page(|page| Process.encode(page));
        for line in page.lines().filter(|line| !line.starts_with('#') && !line.starts_with("process_cpu")) {
            let value: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            assert!(value >= 1.0, "{line}");
        }
    }
}
