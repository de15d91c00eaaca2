"""Secure sums (secure aggregation): the server learns the sum over the surviving clients, and nothing else.

After Bonawitz et al. 2017.

**How.** Each pair of clients agrees on a mask that one adds and the other subtracts, so that these masks cancel in the
sum. Each client also adds a private mask. Every client gives shares of the secrets of both kinds of masks to the other
clients. If a client drops out, enough shares reveal the secret of its pairwise masks; if it survives, the seed of its
private mask. Never both.

**Steps.** keys, shares, masked, agree, unmask: five messages up and five down. So the server waits for replies five
times in a round. It waits four times if all clients sent their keys early, with their last reply in the round before.

**Assumptions.** Every client has a roster of long-term Ed25519 keys that does not come from the server. At most
`corrupted` clients share all they see with the server; at least three others are honest. The server follows the
protocol, but tries to learn more than the sum. A malicious server can still refuse service, choose which clients count
as dropped out, and compare the sums of different rounds. But it must tell all clients of a round the same list of
dropouts, because of the `agree` step and a threshold above (n + corrupted) / 2. The values of a client are not checked:
a wrong vector is added like any other.

**Pure functions.** Messages in, messages out; randomness is passed in as a function. The only side effect is
`AnsweredSteps.mark_answered`, called *before* the reply to a step of a round is made. So a restarted client never
answers twice, and no second vector leaves under the same masks. A step that is refused changes nothing.
"""
