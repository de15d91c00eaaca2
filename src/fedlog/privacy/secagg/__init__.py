"""A sum without a trusted server, after Bonawitz et al. 2017: the server learns the sum over the survivors, or nothing.

**How.** Each pair of clients agrees on a mask that one adds and the other subtracts, so masks cancel in the sum; each
client adds a second mask of its own. Shares of the secrets behind both lie with the other clients: for a client that
dropped out, enough of them reveal its pairwise secret; for one that survived, the seed of its own mask; never both.

**Steps.** keys, shares, masked, agree, unmask: five messages up and five down. Keys for the next round may ride on this
round's last reply and the list of keys on the broadcast, which leaves four turns a round (`TURNS_OF_LATER_ROUNDS`).

**Model.** A roster of long-term Ed25519 keys that every client got from somewhere other than the server. At most
`corrupted` clients work together with the server and share all they see; at least three others are honest. The server
follows the protocol but wants to know. What an actively malicious server can still do: refuse service, choose who
counts as dropped out (at most once a round: the `agree` step and a threshold above (n + corrupted) / 2 keep it from
telling two stories), and compare the sums of different rounds (differencing). Nothing here checks what a client puts
in: a poisoned vector is added like any other.

**Pure.** Messages in, messages out. Randomness comes in as a function; the only effect is `UsedSteps.claim`, which
marks a step of a round as answered *before* its reply exists, so that a restarted client never answers twice: no second
vector ever leaves under the same masks. A step refused for a bad message changes nothing.
"""
