"""A coordinator, and sites that collude with it, against the protocol: refused, or nothing is learnt.

Where an attack is worth its name, the test also takes the one check away that stops it, and sees it succeed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import hypergeom

from fedspan.encoding import decode, encode
from fedspan.errors import CohortError, FileError, ProtocolError
from fedspan.secure import SecureSums
from fedspan.secure.aggregation import Aggregation, new_nonce
from fedspan.secure.keys import Identity, KeyPair, open_sealed
from fedspan.secure.masks import add_mask
from fedspan.secure.roll import ADVERT, Advert, Roll, Subject, fingerprint, pair_sign
from fedspan.secure.session import Session
from fedspan.secure.shamir import combine
from fedspan.secure.unmasked import Unmasked
from tests.secure.by_hand import ABOUT, REGULAR, RULES, ByHand, names_of, parties_of, plain_sum

N = 6
VICTIM = "s002"
OTHERS = [name for name in names_of(N) if name != VICTIM]


def reasons(sum_: ByHand) -> set[str]:
    """Why sites refused, without their names."""
    return {why.split(";")[0] for why in sum_.said.values()}


def fails(sum_: ByHand, words: str, *, of: int = 1) -> None:
    """A sum comes to nothing, because at least so many sites say this."""
    with pytest.raises(CohortError):
        sum_.run()
    assert sum(words in why for why in sum_.said.values()) >= of, sum_.said


# ---- swapped keys ----------------------------------------------------------------------------------------------


class InTheMiddle:
    """A coordinator that puts keys of its own in the place of each neighbour's, to open what is sealed for them."""

    def __init__(self, parties: dict[str, Any]) -> None:
        self.sum, self.opened = ByHand(parties, meddle=self.meddle), {}
        self.pairs = {name: (KeyPair.generate(), KeyPair.generate()) for name in parties}
        self.roll: Roll

    def meddle(self, phase: str, name: str, message: Any) -> Any:
        if phase != "shares" or name != VICTIM:
            return message
        adverts = {name: self.sum.made._adverts[name] for name in message["names"]}
        for other in OTHERS:
            mask, seal = (pair.public for pair in self.pairs[other])
            text = self.sum.made.subject.advert_text(other, mask, seal)
            adverts[other] = Advert(mask, seal, Identity.generate().sign(text)).octets
        digests = tuple(fingerprint(adverts[name]) for name in message["names"])
        self.roll = Roll(self.sum.made.subject, tuple(message["names"]), digests)
        letter = np.frombuffer(b"".join(adverts[name] for name in OTHERS), np.uint8).reshape(-1, ADVERT)
        stacked = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
        return {**message, "digests": stacked, "letter": {"adverts": letter}}

    def secret(self) -> bytes:
        """The victim's masking key, of the shares it sealed."""
        public, shares = Advert.of(self.sum.made._adverts[VICTIM]).seal, {}
        points = {name: point for point, name in enumerate(self.roll.holders(VICTIM), start=1)}
        for other, box in zip(OTHERS, self.sum.replies["shares"][VICTIM]["boxes"], strict=True):
            info = self.roll.seal_info(VICTIM, other)
            shares[points[other]] = open_sealed(self.pairs[other][1].shared(public, info), box.tobytes(), info)[33:]
        return combine(shares, self.roll.needed)


def test_keys_of_the_coordinators_own_are_refused(monkeypatch):
    attack = InTheMiddle(parties_of(N))
    attack.sum.run()
    assert "are not signed by the identity on this site's roster" in attack.sum.said[VICTIM]
    assert VICTIM not in attack.sum.made.alive
    monkeypatch.setattr("fedspan.secure.party.verify", lambda *given: True)
    attack = InTheMiddle(parties_of(N))
    attack.sum.run("shares")
    assert attack.secret() == attack.sum.parties[VICTIM]._session.masking.private


def test_keys_swapped_between_two_sites_are_refused():
    def swap(phase, name, reply):
        return {**reply, "advert": swapped[name]} if phase == "keys" and name in swapped else reply

    sum_ = ByHand(parties_of(N))
    sum_.run("keys")
    adverts = {name: reply["advert"] for name, reply in sum_.replies["keys"].items()}
    swapped = {"s000": adverts["s001"], "s001": adverts["s000"]}
    fails(ByHand(sum_.parties, nonce=sum_.nonce, lie=swap), "are not signed by the identity", of=4)


@pytest.mark.parametrize("what", ["number", "kind", "question", "nonce"])
def test_keys_of_another_sum_are_refused(what):
    other = {"number": 1, "kind": "bound", "question": "11" * 32, "nonce": "22" * 16}[what]
    parties = parties_of(N)
    before = ByHand(parties, **{what: other})
    before.run("keys")

    def replay(phase, name, reply):
        return before.replies["keys"][name] if phase == "keys" and name == VICTIM else reply

    fails(ByHand(parties, lie=replay), "the keys sent for 's002' are not signed by the identity", of=N - 1)


def test_keys_of_another_run_are_refused():
    identities = parties_of(N)
    other = {name: type(p)(name, p._identity, p._roster, RULES, run="other") for name, p in identities.items()}
    before = ByHand(other)
    before.run("keys")
    replay = {VICTIM: before.replies["keys"][VICTIM]}
    sum_ = ByHand(identities, lie=lambda phase, name, reply: replay.get(name, reply) if phase == "keys" else reply)
    fails(sum_, "the keys sent for 's002' are not signed by the identity", of=N - 1)


# ---- replayed, tampered and misdirected shares -----------------------------------------------------------------


def test_boxes_of_an_earlier_sum_are_refused():
    parties = parties_of(N)
    before = ByHand(parties)
    before.run("shares")

    def replay(phase, name, message):
        if phase != "masked":
            return message
        return {**message, "letter": before.made.mask_letters()[name]}

    fails(ByHand(parties, meddle=replay), "were tampered with", of=N)


def test_every_other_box_or_damaged_byte_is_refused():
    rng = np.random.default_rng(0)

    def damage(phase, name, message):
        if phase != "masked":
            return message
        boxes = message["letter"]["boxes"].copy()
        boxes[rng.integers(len(boxes)), rng.integers(boxes.shape[1])] ^= 1 << rng.integers(8)
        return {**message, "letter": {**message["letter"], "boxes": boxes}}

    for _ in range(20):
        fails(ByHand(parties_of(N), meddle=damage), "were tampered with", of=N)


def test_released_shares_of_an_earlier_sum_do_not_open_this_one():
    parties = parties_of(N)
    before = ByHand(parties)
    before.run()

    def replay(phase, name, reply):
        return before.replies["release"][name] if phase == "release" else reply

    with pytest.raises(CohortError, match="some shares of the secret of 's000' are false, and the rest do not give"):
        ByHand(parties, lie=replay).run()


# ---- forged lists ----------------------------------------------------------------------------------------------


def two_stories(phase: str, name: str, message: Any) -> Any:
    """Half of the sites are told that the victim is in the sum, the others that it dropped out."""
    if phase != "consent" or name in ("s000", "s001", VICTIM):
        return message
    return {**message, "alive": OTHERS, "dropped": [VICTIM]}


def test_neighbours_told_different_stories_release_nothing():
    sum_ = ByHand(parties_of(N), meddle=two_stories)
    sum_.run("consent")  # all six sign, each its own story
    assert len(sum_.made._signatures) == N
    with pytest.raises(CohortError, match="shares are missing"):
        sum_.run()
    assert reasons(sum_) == {"3 of the sites in the sum signed the list that this site did"}


def both_secrets(n: int, listed: Any, colluding: list[str]) -> bool:
    """Whether shares enough of both of the victim's secrets come together, if each site is told its own list."""
    sum_ = ByHand(parties_of(n), meddle=listed)
    sum_.run("consent")
    for name in sum_.parties:
        sum_.parties[name]._unmasked = Unmasked("")  # nor does any site remember
    sum_.ask("release", sum_.made.signers, sum_.made.release())
    seeds, keys = set(colluding), set(colluding)
    for name, reply in sum_.replies["release"].items():
        if "own" in reply:
            told = sum_.parties[name]._session
            (seeds if VICTIM in told.alive else keys).add(name)
    return min(len(seeds), len(keys)) >= sum_.made.roll.needed


def test_both_secrets_of_a_site_would_be_told_were_it_not_for_the_quorum(monkeypatch):
    """It takes seven of nine to give a secret back: to give back two, five of them must give shares of both."""
    names = names_of(9)
    others = [name for name in names if name != VICTIM]

    def listed(phase, name, message):
        if phase != "consent" or name in ("s000", VICTIM):
            return message
        return {**message, "alive": others, "dropped": [VICTIM]}

    assert not both_secrets(9, listed, names[4:])
    monkeypatch.setattr(Roll, "quorum", 1)
    assert both_secrets(9, listed, names[4:])
    assert not both_secrets(9, listed, names[5:])  # the shares' own threshold is a second wall


def test_a_site_both_alive_and_dropped_is_refused_by_all():
    def listed(phase, name, message):
        return {**message, "dropped": [VICTIM]} if phase == "consent" else message

    fails(ByHand(parties_of(N), meddle=listed), "would be both in the sum and dropped: both secrets would be", of=N)


def test_a_site_that_never_was_in_the_sum_is_refused_by_all():
    def listed(phase, name, message):
        return {**message, "alive": names_of(N + 1)} if phase == "consent" else message

    fails(ByHand(parties_of(N), meddle=listed), "the list has sites that are not on the roll: s006", of=N)


def test_a_site_left_out_of_the_list_is_missed_by_all():
    """Neither alive nor dropped, its masks would stay, and its vector might be told apart another way."""

    def listed(phase, name, message):
        return {**message, "alive": OTHERS} if phase == "consent" else message

    fails(ByHand(parties_of(N), meddle=listed), "the list is not of those who share masks with this site", of=N - 1)


def test_a_list_of_a_few_is_refused_by_all():
    def listed(phase, name, message):
        return {**message, "alive": names_of(3), "dropped": names_of(N)[3:]} if phase == "consent" else message

    fails(ByHand(parties_of(N), meddle=listed), "the sum would be of 3 sites", of=3)


# ---- signatures ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["nonce", "number", "kind"])
def test_signatures_of_another_sum_are_refused(what):
    parties = parties_of(N)
    other = {"number": 1, "kind": "bound", "nonce": new_nonce()}[what]
    before = ByHand(parties, **{what: other, "number": 1 if what == "number" else 0})
    before.run("consent")
    sum_ = ByHand(parties, number=2)

    def replay(phase, name, message):
        if phase != "release":
            return message
        old = before.made.release()
        return {**message, "signers": old["signers"], "signatures": old["signatures"]}

    sum_.meddle = replay
    fails(sum_, "0 of the sites in the sum signed the list that this site did", of=N)


def test_the_same_signer_does_not_count_twice():
    def double(phase, name, message):
        if phase != "release":
            return message
        first = message["signers"][:3]
        return {**message, "signers": sorted(first * 2), "signatures": np.repeat(message["signatures"][:3], 2, axis=0)}

    fails(ByHand(parties_of(N), meddle=double), "the signers names each site once, in order", of=N)


def test_strangers_signatures_do_not_count():
    stranger = Identity.generate()

    def forge(phase, name, message):
        if phase != "release":
            return message
        text = sum_.parties[name]._session.survivors_text
        signatures = message["signatures"].copy()
        signatures[:3] = np.frombuffer(stranger.sign(text), np.uint8)
        return {**message, "signatures": signatures}

    sum_ = ByHand(parties_of(N), meddle=forge)
    fails(sum_, "3 of the sites in the sum signed the list that this site did", of=N)


def test_a_site_that_signs_two_lists_changes_nothing():
    """A signer that contradicts itself counts for each list, and one list only has a quorum of the others."""
    sum_ = ByHand(parties_of(N), meddle=two_stories)
    sum_.run("consent")
    liar = sum_.parties["s005"]

    def fits(phase, name, message):
        if phase != "release":
            return message
        signatures = message["signatures"].copy()
        own = liar._identity.sign(sum_.parties[name]._session.survivors_text)
        signatures[message["signers"].index("s005")] = np.frombuffer(own, np.uint8)
        return {**message, "signatures": signatures}

    sum_.meddle = fits
    with pytest.raises(CohortError, match="shares are missing"):
        sum_.run()
    assert "4 of the sites in the sum signed the list" in sum_.said["s000"]
    assert "3 of the sites in the sum signed the list" in sum_.said["s004"]


# ---- different things told to different sites ------------------------------------------------------------------


def told_otherwise(field: str, value: Any) -> ByHand:
    """One site hears of another sum than the others."""

    def meddle(phase, name, message):
        return {**message, field: value} if phase == "keys" and name == VICTIM else message

    return ByHand(parties_of(N), meddle=meddle)


@pytest.mark.parametrize(("field", "value"), [("nonce", "33" * 16), ("question", "44" * 32), ("kind", "bound")])
def test_who_is_told_of_another_sum_takes_part_in_none(field, value):
    sum_ = told_otherwise(field, value)
    fails(sum_, "the keys sent for 's002' are not signed by the identity", of=N - 1)


def test_who_is_told_of_another_roll_takes_part_in_none():
    """In a graph of neighbours a site does not hear of all keys: with another roll its boxes open nowhere."""
    sum_ = ByHand(parties_of(40, REGULAR), REGULAR)
    sum_.run("keys")
    victim = sum_.made.asked[0]
    far = next(name for name in sum_.parties if name not in sum_.made.roll.holders(victim))

    def meddle(phase, name, message):
        if phase != "shares" or name != victim:
            return message
        digests, place = message["digests"].copy(), message["names"].index(far)
        for byte in range(256):
            digests[place, 0] = byte
            other = Roll(sum_.made.subject, tuple(message["names"]), tuple(row.tobytes() for row in digests))
            if far not in other.neighbours(victim) and other.session != sum_.made.roll.session:
                break
        letter = [sum_.made._adverts[n] for n in other.neighbours(victim)]
        adverts = np.frombuffer(b"".join(letter), np.uint8).reshape(-1, ADVERT)
        return {**message, "digests": digests, "letter": {"adverts": adverts}}

    sum_.meddle = meddle
    sum_.shares()
    assert victim not in sum_.said  # it cannot know yet
    with pytest.raises(CohortError, match="sent their masked replies"):
        sum_.masked()
    assert "belongs to another secure sum" in sum_.said[victim]
    touched = set(sum_.made.roll.neighbours(victim))
    assert all(("were tampered with" in sum_.said.get(name, "")) == (name in touched) for name in sum_.made.asked[1:])


@pytest.mark.parametrize("group", [[VICTIM], ["s002", "s003"], ["s000", "s002", "s004"]])
def test_who_reads_the_numbers_otherwise_shares_no_masks_with_the_others(group, monkeypatch):
    """The scale, how often replies count, or how rows were prepared: what makes others' numbers vanish."""

    class Told(ByHand):
        def _hidden(self, session, name):
            vector = self.vectors[name].copy()
            session.hide(vector, ABOUT if name in group else "00" * 32)
            return {"masked": vector}

    def learnt():
        sum_ = Told(parties_of(N))
        for name in sum_.vectors:
            if name not in group:
                sum_.vectors[name][:] = 0
        monkeypatch.setattr(Session, "survivors_text", property(lambda self: b"one list"))  # and they do not notice
        return np.array_equal(sum_.run(), plain_sum(sum_.vectors, names_of(N)))

    assert not learnt()
    plain = Roll.mask_info
    monkeypatch.setattr(Roll, "mask_info", lambda self, one, other, about: plain(self, one, other, ""))
    assert learnt()


def test_who_reads_the_numbers_otherwise_signs_another_list():
    class Told(ByHand):
        def _hidden(self, session, name):
            vector = self.vectors[name].copy()
            session.hide(vector, ABOUT if name in ("s000", "s001") else "00" * 32)
            return {"masked": vector}

    sum_ = Told(parties_of(N))
    fails(sum_, "2 of the sites in the sum signed the list that this site did", of=2)
    assert "4 of the sites in the sum signed the list" in sum_.said["s003"]


# ---- collusion -------------------------------------------------------------------------------------------------


def shares_of(sum_: ByHand, owner: str, holders: list[str], secret: int) -> dict[int, bytes]:
    """What holders know of a site's secret, by point."""
    points = {name: point for point, name in enumerate(sum_.made.roll.holders(owner), start=1)}
    return {points[name]: sum_.parties[name]._session.held[owner][secret] for name in holders}


@pytest.mark.parametrize(("n", "rules"), [(9, RULES), (40, REGULAR)])
@pytest.mark.parametrize("secret", [0, 1], ids=["mask", "key"])
def test_as_many_holders_as_the_threshold_know_a_secret_and_one_fewer_do_not(n, rules, secret):
    sum_ = ByHand(parties_of(n, rules), rules)
    sum_.run("masked")
    t = sum_.made.roll.needed
    holders = sum_.made.roll.neighbours(VICTIM)
    own = sum_.parties[VICTIM]._session
    true = own.own_seed if secret == 0 else own.masking.private
    assert combine(shares_of(sum_, VICTIM, holders[:t], secret), t) == true
    few = shares_of(sum_, VICTIM, holders[: t - 1], secret)
    with pytest.raises(ProtocolError, match=f"here {t}; got {t - 1}"):
        combine(few, t)
    # whatever the missing share is, it makes another secret: each is as likely as the true one
    point = max(few) + 1
    found = set()
    for guess in range(5):
        try:
            found.add(combine({**few, point: guess.to_bytes(33, "big")}, t))
        except ProtocolError:
            found.add(guess)
    assert len(found) == 5
    assert true not in found


def collude(n: int, colluding: int, monkeypatch: Any) -> bool:
    """Whether the coordinator learns the victim's vector with so many of its neighbours' help."""
    sum_ = ByHand(parties_of(n))
    total = sum_.run()
    friends = [name for name in names_of(n) if name != VICTIM][:colluding]
    honest = [name for name in names_of(n) if name not in friends]
    t, made = sum_.made.roll.needed, sum_.made
    rest = total - plain_sum(sum_.vectors, friends)
    assert np.array_equal(rest, plain_sum(sum_.vectors, honest))  # that much is what a sum tells
    masked = sum_.replies["masked"][VICTIM]["masked"].copy()
    add_mask(masked, sum_.parties[VICTIM]._session.own_seed, sign=-1)  # released: it is in the sum
    keys = shares_of(sum_, VICTIM, friends, 1)
    if len(keys) < t:
        for name in friends:  # their own masks with the victim they know
            key = sum_.parties[name]._session.masking.shared(
                Advert.of(made._adverts[VICTIM]).mask, made.roll.mask_info(name, VICTIM, ABOUT)
            )
            add_mask(masked, key, sign=pair_sign(name, VICTIM))
        return np.array_equal(masked, sum_.vectors[VICTIM])
    key = KeyPair.from_private(combine(keys, t))
    for name in names_of(n):
        if name != VICTIM:
            shared = key.shared(Advert.of(made._adverts[name]).mask, made.roll.mask_info(name, VICTIM, ABOUT))
            add_mask(masked, shared, sign=pair_sign(name, VICTIM))
    return np.array_equal(masked, sum_.vectors[VICTIM])


@pytest.mark.parametrize(("colluding", "learnt"), [(0, False), (3, False), (6, False), (7, True)])
def test_the_coordinator_and_fewer_sites_than_the_threshold_learn_the_honest_ones_sum_only(
    colluding, learnt, monkeypatch
):
    assert collude(9, colluding, monkeypatch) == learnt


@pytest.mark.parametrize("colluding", [1, 2, 5, 9])
def test_a_small_roll_of_friends_and_one_victim_is_refused(colluding):
    """Its sum less what the friends know would be the victim's vector."""
    n = 15
    chosen = sorted([VICTIM, *[name for name in names_of(n) if name != VICTIM][:colluding]])
    parties = parties_of(n)
    sum_ = ByHand({name: parties[name] for name in chosen})
    sum_.made._least = 0  # the coordinator does not mind
    sum_.run("keys")
    sum_.ask("shares", sum_.made.asked, sum_.made.shares(), sum_.made.share_letters())
    assert sum_.said[VICTIM] == f"a sum of {colluding + 1} sites is too few to hide in; this site's policy is 11"


# ---- the graph -------------------------------------------------------------------------------------------------


def blocks_of(roll: Roll, colluding: int) -> tuple[list[str], list[str], list[str]]:
    """Cut the circle at two places with k/2 sites in a row each: who colludes, who is dropped, one part of the rest."""
    order, half = roll._circle._order, roll.degree // 2
    n = len(order)
    rows = [order[:half], order[n // 2 : n // 2 + half]]
    friends = [name for row in rows for name in row[half - colluding :]]
    dropped = [name for row in rows for name in row[: half - colluding]]
    return friends, dropped, order[half : n // 2]


def cut_off(sum_: ByHand, friends: list[str], dropped: list[str], part: list[str]) -> np.ndarray:
    """What the coordinator makes of the masked vectors of a part, with all that it was told and its friends know."""
    made, total = sum_.made, plain_sum({n: r["masked"] for n, r in sum_.replies["masked"].items()}, part)
    known = {name: sum_.parties[name]._session.masking for name in friends}
    for name in dropped:
        points = {holder: point for point, holder in enumerate(made.roll.holders(name), start=1)}
        told = made._pairs[name] | {f: sum_.parties[f]._session.held[name][1] for f in friends if f in points}
        known[name] = KeyPair.from_private(combine({points[h]: s for h, s in told.items()}, made.roll.needed))
    for name in part:
        add_mask(total, made._secret(name, made._own[name], made._is_seed), sign=-1)
        for other in made.roll.neighbours(name):
            if other in known:
                key = known[other].shared(Advert.of(made._adverts[name]).mask, made.roll.mask_info(name, other, ABOUT))
                add_mask(total, key, sign=-pair_sign(name, other))
    return total


def test_a_coordinator_that_picks_whom_to_drop_does_not_cut_the_sum_in_two(monkeypatch):
    """It drops sites in a row at two places of the circle, where those who collude fill the rest: the part between has
    no masks with the others, and its sum would be told alone."""
    allowed = REGULAR.gap(60, 60)

    def attack():
        sum_ = ByHand(parties_of(60, REGULAR), REGULAR)
        sum_.run("shares")
        roll = sum_.made.roll
        friends, dropped, part = blocks_of(roll, roll.degree // 2 - (roll.degree + 1 - roll.needed))
        assert len(part) >= roll.degree // 2
        assert roll.most_missing([n for n in names_of(60) if n not in dropped])[0] > allowed
        sum_.silent = {"masked": set(dropped)}
        sum_.run("release")
        return np.array_equal(cut_off(sum_, friends, dropped, part), plain_sum(sum_.vectors, part))

    with pytest.raises(CohortError, match="as if to cut it in two"):
        attack()
    monkeypatch.setattr(SecureSums, "gap", lambda self, n, of: n)
    assert attack()


def test_a_coordinator_that_withholds_boxes_across_a_cut_is_refused_by_those_at_it():
    sum_ = ByHand(parties_of(60, REGULAR), REGULAR)
    sum_.run("shares")
    roll = sum_.made.roll
    order, half = roll._circle._order, roll.degree // 2
    at = {name: place for place, name in enumerate(order)}

    def across(one, other):
        return (at[one] < 30) != (at[other] < 30) and abs(at[one] - at[other]) <= half

    def meddle(phase, name, message):
        if phase != "masked":
            return message
        letter = message["letter"]
        keep = [i for i, sender in enumerate(letter["from"]) if not across(sender, name)]
        return {**message, "letter": {"from": [letter["from"][i] for i in keep], "boxes": letter["boxes"][keep]}}

    sum_.meddle = meddle
    with pytest.raises(CohortError, match="signed the list of the sum's sites"):
        sum_.run()
    spare = roll.degree + 1 - roll.needed
    from_the_cut = [min(abs(place - 29), abs(place - 30)) for place in range(60)]
    for name, distance in zip(order, from_the_cut, strict=True):
        if distance < half - spare:
            assert f"{half + distance} of {2 * half} neighbours take part" in sum_.said[name]
        elif distance < half:
            assert "not of those who share masks with this site" in sum_.said[name]
        else:
            assert "as if to cut it in two" in sum_.said[name]


def test_grinding_for_a_graph_is_one_draw_after_another_from_the_same_lot():
    """Who colludes makes keys until the graph is bad: each draw is bad with the chance that the rules count, no more.

    At a number of friendly neighbours small enough for it to be seen.
    """
    n, k = 40, REGULAR.neighbours(40)
    names, friends = tuple(names_of(n)), set(names_of(n)[:8])
    needed = next(c for c in range(k) if n * hypergeom.sf(c - 1, n - 1, len(friends), k) < 1 / 8)
    subject, draws, bad = Subject("r", 0, "value", "00" * 32, "00" * 16, REGULAR, n), 1000, 0
    for draw in range(draws):
        digests = tuple(fingerprint(f"{name} {draw if name in friends else 0}".encode()) for name in names)
        roll = Roll(subject, names, digests)
        worst = max(len(friends.intersection(roll.neighbours(name))) for name in names if name not in friends)
        bad += worst >= needed
    assert needed < 2 * REGULAR.holders_needed(k) - (k + 1)  # which it takes to harm
    assert 0 < bad / draws < 1 / 8


# ---- a round asked again ---------------------------------------------------------------------------------------


def test_a_round_asked_again_gives_the_same_sum_or_none():
    parties = parties_of(N)
    first = ByHand(parties).run().copy()
    for _ in range(3):
        assert np.array_equal(ByHand(parties).run(), first)
    for silent in ({"s005"}, {"s001"}):
        with pytest.raises(CohortError):
            ByHand(parties, silent={"masked": silent}).run()


def test_two_sums_of_nearly_the_same_sites_are_not_told_by_asking_others():
    """Of the same round one sum with the victim and one without, unmasked by different holders."""
    n = 12
    parties, t = parties_of(n), 9
    first = ByHand(parties, silent={"release": set(names_of(n)[t:])})
    first.run()  # told by nine of twelve
    rest = ByHand(parties, silent={"masked": {VICTIM}})
    with pytest.raises(CohortError):
        rest.run()
    assert rest.made.before == names_of(n)
    rest = ByHand(parties, silent={"masked": {VICTIM}})
    rest.run("keys")
    rest.made.before = []  # the coordinator wants the other sum all the same
    with pytest.raises(CohortError, match="3 sites signed the list of the sum's sites, and it takes 9 of 12"):
        rest.run()


# ---- truncated messages ----------------------------------------------------------------------------------------


def test_a_message_that_is_cut_short_anywhere_is_an_error():
    sum_ = ByHand(parties_of(4))
    sum_.run()
    for message in (sum_.made.shares(), sum_.made.mask_letters(), sum_.made.release(), sum_.replies["release"]):
        data = encode(message)
        assert encode(decode(data)) == data
        for size in {*range(0, len(data), 7), len(data) - 1}:
            with pytest.raises(FileError):
                decode(data[:size])


@pytest.mark.parametrize("phase", ["shares", "masked", "consent", "release"])
def test_a_message_that_lacks_a_row_or_a_field_is_refused(phase):
    def shorter(value):
        if isinstance(value, np.ndarray | list) and len(value):
            yield value[:-1]
        if isinstance(value, dict):
            for key in value:
                yield {k: v for k, v in value.items() if k != key}
                for less in shorter(value[key]):
                    yield {**value, key: less}

    tried = []

    def meddle(asked, name, message):
        if asked == phase and name == VICTIM:
            for less in shorter(message):
                with pytest.raises(ProtocolError):
                    sum_.answer(phase, name, less)
                tried.append(less)
        return message

    sum_ = ByHand(parties_of(N), meddle=meddle)
    assert np.array_equal(sum_.run(), plain_sum(sum_.vectors, names_of(N)))
    assert len(tried) >= 4


def test_an_aggregation_is_of_one_attempt():
    subject = Subject("r", 0, "value", "00" * 32, new_nonce(), RULES, N)
    made = Aggregation(subject)
    assert (made.asked, made.alive, made.dropped, made.refused) == ([], [], [], {})
