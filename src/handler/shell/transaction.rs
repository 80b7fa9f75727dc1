//! Shell commands whose output is done in one transaction with the completion.

use async_trait::async_trait;

use super::ShellHandler;
use super::head::Written;
use crate::handler::operations::MAX_OPERATIONS_BYTES;
use crate::handler::{HandlerContext, OperationRules, Outcome, Preparation, PreparingHandler};
use crate::model::Envelope;

/// Runs a command for each delivery, as [`ShellHandler`] does, and reads what it wrote to stdout as
/// [operations](crate::handler::operations).
///
/// The exit status means what it always means: what a command wrote counts when it exits 0, and not otherwise. The end of
/// stderr is the message of a failure, as ever.
#[derive(Clone, Debug)]
pub struct ShellTransaction {
    work: ShellHandler,
    rules: OperationRules,
}

impl ShellTransaction {
    /// A handler that does as `work` does, and whose operations keep to `rules`.
    pub fn new(mut work: ShellHandler, rules: OperationRules) -> Self {
        work.command = work.command.keeping_stdout(MAX_OPERATIONS_BYTES);
        ShellTransaction { work, rules }
    }

    fn read(&self, written: Written, envelope: &Envelope) -> Result<Preparation, String> {
        match written {
            Written::Whole(output) => {
                let operations = self.rules.read(&output, envelope).map_err(|error| error.to_string())?;
                Ok(Preparation::Ready(operations))
            }
            Written::TooMuch { line } => {
                let limit = MAX_OPERATIONS_BYTES >> 20;
                Err(format!("line {line}: goes beyond the {limit} MiB that stdout may have"))
            }
            Written::Unended => {
                Err("stdout was still open when the command was over: lines may be missing".into())
            }
        }
    }
}

#[async_trait]
impl PreparingHandler for ShellTransaction {
    async fn prepare(&self, envelope: &Envelope, context: &HandlerContext) -> Preparation {
        match self.work.attempt(envelope, context).await {
            (Outcome::Succeeded, Some(written)) => {
                let read = self.read(written, envelope);
                read.unwrap_or_else(|reason| Preparation::Ended(Outcome::failed(reason)))
            }
            (outcome, _) => Preparation::Ended(outcome),
        }
    }
}
