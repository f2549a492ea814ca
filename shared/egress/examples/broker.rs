//! A broker by itself, for trying it out and for probing it:
//!
//! ```text
//! cargo run -p tailstep-egress --example broker -- 127.0.0.1:3128 allowed.test '*.example.com'
//! curl -x http://127.0.0.1:3128 https://www.example.com/
//! ```

use std::{collections::BTreeMap, time::Duration};

use tailstep_core::egress::{EgressRule, Networking};
use tailstep_egress::{Broker, Config, Policy};

#[tokio::main]
#[allow(clippy::print_stdout, reason = "it is there to be looked at")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:3128".to_owned());
    let rules = arguments.map(EgressRule::for_host).collect();
    let networking = Networking::Limited { rules, package_managers: false };
    let policy = Policy::new(&networking, &BTreeMap::new())?;
    let listener = tokio::net::TcpListener::bind(&address).await?;
    let proxy_url = format!("http://{}", listener.local_addr()?);
    println!("listening on {proxy_url}");
    let broker = Broker::new(policy, Config { proxy_url, ..Config::default() })?;
    let serving = broker.clone();
    tokio::spawn(async move { serving.serve(listener).await });
    loop {
        tokio::time::sleep(Duration::from_millis(200)).await;
        let (decisions, dropped) = broker.take_decisions();
        for decision in decisions {
            let word = if decision.allowed { "allowed" } else { "refused" };
            println!("{word} {}:{} {}", decision.host, decision.port, decision.why);
        }
        if dropped > 0 {
            println!("and {dropped} more");
        }
    }
}
