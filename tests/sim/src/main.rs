use tests_sim::{bug::Bug, hunt::{hunt, survey, Coverage}, run::run};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    if a.get(1).map(String::as_str) == Some("--seed") {
        let bug = a.get(3).and_then(|n| Bug::ALL.iter().copied().find(|b| b.name() == n));
        let o = run(a[2].parse().unwrap(), bug, true);
        for l in &o.trace { println!("{l}"); }
        println!("{:?} nets {:?} faults {:?} vis {} lease {} slow {}", o.plan.profile, o.plan.nets, o.plan.faults, o.plan.visibility_ms, o.plan.limits.lease_ms, o.plan.slow_ms);
        for v in &o.violations { println!("VIOLATION {:?} {}", v.checker, v.what); }
        return;
    }
    let n: u64 = a.get(1).and_then(|s| s.parse().ok()).unwrap_or(200);
    let mut c = Coverage::default();
    let t = std::time::Instant::now();
    let mut seed = 1; let mut fails = 0;
    while seed <= n {
        match survey(seed, n + 1 - seed, &mut c) { None => break, Some(f) => { println!("{} {:?} {}", f.seed, f.checker, &f.what[..f.what.len().min(400)]); seed = f.seed + 1; fails += 1; } }
    }
    println!("{n} seeds {fails} fails {:?} {:?}", t.elapsed(), c);
    if a.len() > 2 { for &b in Bug::ALL { println!("{} {:?}", b.name(), hunt(b).map(|f| (f.seed, f.checker, f.what.chars().take(120).collect::<String>()))); } }
}
