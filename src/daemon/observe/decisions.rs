//! What is counted, traced and logged of a decision.

use std::future::Future;

use tracing::Level;

use super::labels::Unmatched;
use super::metrics::Metrics;
use super::refusals::refused;
use super::traces;
use crate::core::{Answer, Explanation, Plan, Refusal};

/// The target of the log lines that explain each decision.
const DECISIONS: &str = "swlimitd::decisions";

/// A decision that is observed.
pub struct Decision<'a> {
    pub plan: &'a Plan<'a>,
    /// Why descriptors without a rule have none.
    pub unmatched: Unmatched,
    pub shadow_mode: bool,
}

impl Metrics {
    /// The answers, counted by rule. Only a plan of the current configuration adds series.
    pub async fn observe_decision(
        &self,
        Decision { plan, unmatched, shadow_mode }: Decision<'_>,
        deciding: impl Future<Output = Result<Vec<Answer>, Refusal>>,
        is_current: impl FnOnce() -> bool,
    ) -> Result<Vec<Answer>, Refusal> {
        let counting = self.rules.count(plan, shadow_mode);
        let decided = deciding.await.map_err(refused);
        traces::decided(plan, &decided);
        if tracing::enabled!(target: DECISIONS, Level::DEBUG) {
            let answers = match &decided {
                Ok(answers) => answers.iter().copied().map(Ok).collect(),
                Err(refusal) => vec![Err(refusal.clone()); plan.questions.len()],
            };
            let explanation = Explanation::new(plan, &answers, shadow_mode);
            tracing::debug!(target: DECISIONS, "{}", explanation.to_string().replace('\n', "; "));
        }
        counting.end(&decided, is_current(), || self.unmatched(unmatched));
        for (question, _) in plan.questions.iter().zip(decided.iter().flatten()).filter(|(_, answer)| !answer.granted) {
            self.denied_here.count(&question.key);
        }
        decided
    }
}
