"""What an edit does to the pods, as Kthena v1.0.0's controller does it: on snapshots of deployments that need no cluster."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impact import Capacity, Prediction, predict, steps
from live.resources import read_room
from live.snapshot import Snapshot

NPU = "huawei.com/ascend-1980"
DIES = 16
BY_ROLE = {"type": "RoleRollingUpdate"}
Object = dict[str, Any]


def template(image: str) -> Object:
    return {"spec": {"containers": [{"name": "engine", "image": image, "resources": {"limits": {NPU: str(DIES), "cpu": "8"}}}]}}


def role(name: str, replicas: int, image: str, workers: int = 0, **more: Any) -> Object:
    of_workers = {"workerTemplate": template(image)} if workers else {}
    return {"name": name, "replicas": replicas, "workerReplicas": workers, "entryTemplate": template(image), **of_workers, **more}


def serving(  # noqa: PLR0913  # what edits differ in
    prefill: int = 1, decode: int = 1, groups: int = 1, *, images: str = "aa", rollout: Object | None = None, name: str = "pd"
) -> Object:
    """A ModelServing whose roles have the images that the two letters of ``images`` name."""
    roles = [role("prefill", prefill, images[0]), role("decode", decode, images[1])]
    spec = {"replicas": groups, "template": {"roles": roles}, **({"rolloutStrategy": rollout} if rollout else {})}
    revision = "".join(images)
    status = {"observedGeneration": 1, "currentRevision": revision, "updateRevision": revision, "updatedReplicas": groups}
    return {"metadata": {"name": name, "generation": 1}, "spec": spec, "status": status}


def limited(**limits: Any) -> Object:
    return {"type": "ServingGroupRollingUpdate", "rollingUpdateConfiguration": limits}


def pod(name: str, of_role: Object, revision: str, *, ready: bool = True, **metadata: Any) -> Object:
    serving_name, group, role_name, number, index = name.rsplit("-", 4)
    labels = {
        "modelserving.volcano.sh/name": serving_name,
        "modelserving.volcano.sh/group-name": f"{serving_name}-{group}",
        "modelserving.volcano.sh/role": role_name,
        "modelserving.volcano.sh/role-id": f"{role_name}-{number}",
        "modelserving.volcano.sh/revision": revision,
        "modelserving.volcano.sh/role-template-hash": f"{role_name}-{of_role['entryTemplate']['spec']['containers'][0]['image']}",
    }
    half = of_role["workerTemplate" if index != "0" else "entryTemplate"]
    return {
        "metadata": {"name": name, "uid": f"uid of {name}", "labels": labels, **metadata},
        "spec": half["spec"] | {"nodeName": "a"},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def pods(item: Object, *, groups: range | None = None, unready: str = "none") -> tuple[Object, ...]:
    """All pods of a ModelServing; those whose name has ``unready`` in it are not ready."""
    names = [
        (f"{item['metadata']['name']}-{group}-{one['name']}-{number}-{index}", one)
        for group in groups or range(item["spec"]["replicas"])
        for one in item["spec"]["template"]["roles"]
        for number in range(one["replicas"])
        for index in range(1 + one["workerReplicas"])
    ]
    return tuple(pod(name, one, item["status"]["updateRevision"], ready=unready not in name) for name, one in names)


def revision(name: str, item: Object) -> Object:
    """The ControllerRevision of a ModelServing, as Go writes its roles."""
    roles = copy.deepcopy(item["spec"]["template"]["roles"])
    for one in roles:
        (container,) = one["entryTemplate"]["spec"]["containers"]
        container["resources"]["limits"]["cpu"] = "8000m"
        container["env"] = None
        one["entryTemplate"]["metadata"] = {}
    labels = {"modelserving.volcano.sh/name": item["metadata"]["name"], "modelserving.volcano.sh/revision": name}
    return {"metadata": {"name": f"pd-{name}", "labels": labels}, "data": {"data": roles}}


def snapshot(item: Object, **of_pods: Any) -> Snapshot:
    return Snapshot((item,), pods(item, **of_pods))


def names(found: Mapping[str, str] | tuple[str, ...]) -> set[str]:
    return {name.removeprefix("pd-") for name in found}


def edited(before: Object, after: Object) -> Prediction:
    return predict(snapshot(before), [after])


def test_what_is_declared_already_touches_no_pod() -> None:
    found = edited(serving(2, 1, 2), serving(2, 1, 2))
    assert (found.change, found.removed, found.created) == ("nothing", {}, ())
    assert len(found.kept) == 6


def test_a_higher_ratio_adds_pods_in_every_group_and_touches_no_other() -> None:
    found = edited(serving(1, 1, 2), serving(2, 1, 2))
    assert found.change == "scaled in place"
    assert names(found.created) == {"0-prefill-1-0", "1-prefill-1-0"}
    assert found.removed == {}
    assert found.capacity_lowest == Capacity(2, 2, 2)
    assert (found.npus_before[NPU], found.npus_most[NPU], found.npus_after[NPU]) == (4 * DIES, 6 * DIES, 6 * DIES)


def test_a_lower_ratio_takes_the_last_instances() -> None:
    found = edited(serving(3, 1), serving(1, 1))
    assert found.change == "scaled in place"
    assert names(found.removed) == {"0-prefill-1-0", "0-prefill-2-0"}
    assert found.created == ()
    assert found.names_are_certain


def test_of_instances_one_that_is_not_ready_goes_first_and_one_that_costs_less_next() -> None:
    before = serving(3, 1)
    there = pods(before, unready="prefill-0")
    assert names(predict(Snapshot((before,), there), [serving(2, 1)]).removed) == {"0-prefill-0-0"}
    there[2]["metadata"]["annotations"] = {"controller.kubernetes.io/pod-deletion-cost": "5"}
    assert names(predict(Snapshot((before,), there), [serving(1, 1)]).removed) == {"0-prefill-0-0", "0-prefill-1-0"}


def test_a_new_instance_takes_the_number_after_the_highest_and_fills_no_gap() -> None:
    before = serving(1, 1)
    there = tuple(
        pod(f"pd-0-{one}-0", before["spec"]["template"]["roles"]["d" in one], "aa") for one in ("prefill-3", "decode-0")
    )
    found = predict(Snapshot((before,), there), [serving(2, 1)])
    assert names(found.created) == {"0-prefill-4-0"}


def test_more_groups_are_added_after_the_last_and_fewer_take_the_last() -> None:
    assert names(edited(serving(groups=1), serving(groups=2)).created) == {"1-prefill-0-0", "1-decode-0-0"}
    assert names(edited(serving(groups=3), serving(groups=2)).removed) == {"2-prefill-0-0", "2-decode-0-0"}


def test_a_new_template_takes_an_only_group_down_before_it_comes_back() -> None:
    found = edited(serving(2, 1), serving(2, 1, images="ab"))
    assert found.change == "groups rolled"
    assert names(found.removed) == names(found.created) == {"0-prefill-0-0", "0-prefill-1-0", "0-decode-0-0"}
    assert found.capacity_lowest == Capacity(0, 0, 0)
    assert found.npus_most[NPU] == 3 * DIES
    assert found.names_are_certain


def test_two_groups_roll_one_after_the_other_and_the_second_gets_a_new_number() -> None:
    found = edited(serving(groups=2), serving(groups=2, images="bb"))
    assert names(found.created) == {f"{group}-{one}-0-0" for group in (1, 2) for one in ("prefill", "decode")}
    assert found.capacity_lowest == Capacity(1, 1, 1)
    assert found.names_are_certain


def test_as_many_groups_go_down_together_as_max_unavailable_says_rounded_down() -> None:
    for limit, lowest in ((2, 1), ("67%", 1), ("34%", 2), (3, 0)):
        found = edited(serving(groups=3), serving(groups=3, images="bb", rollout=limited(maxUnavailable=limit)))
        assert found.capacity_lowest.groups == lowest, limit


def test_which_numbers_groups_get_that_end_together_is_not_certain_but_how_many_they_are_is() -> None:
    found = edited(serving(groups=3), serving(groups=3, images="bb", rollout=limited(maxUnavailable=3)))
    assert not found.names_are_certain
    assert len(found.created) == 6


def test_groups_below_the_partition_keep_their_template() -> None:
    rollout = limited(partition=1)
    before = serving(groups=2, rollout=rollout)
    there = Snapshot((before,), pods(before), (revision("aa", before),))
    found = predict(there, [serving(groups=2, images="bb", rollout=rollout)])
    assert names(found.kept) == {"0-prefill-0-0", "0-decode-0-0"}
    assert names(found.created) == {"1-prefill-0-0", "1-decode-0-0"}
    of_percentage = predict(there, [serving(groups=2, images="bb", rollout=limited(partition="1%"))])
    assert of_percentage.kept == found.kept


def test_a_partition_of_all_groups_pauses_the_rollout() -> None:
    rollout = limited(partition=2)
    found = edited(serving(groups=2, rollout=rollout), serving(groups=2, images="bb", rollout=rollout))
    assert found.change == "nothing"


def test_a_group_below_the_partition_keeps_the_ratio_of_its_revision_too() -> None:
    rollout = limited(partition=1)
    before = serving(groups=2, rollout=rollout)
    there = Snapshot((before,), pods(before), (revision("aa", before),))
    assert names(predict(there, [serving(2, 1, 2, rollout=rollout)]).created) == {"1-prefill-1-0"}
    with_template = predict(there, [serving(2, 1, 2, images="bb", rollout=rollout)])
    assert names(with_template.created) == {"1-prefill-0-0", "1-prefill-1-0", "1-decode-0-0"}


def test_where_a_group_below_the_partition_goes_the_others_take_the_new_ratio() -> None:
    rollout = limited(partition=2)
    before = serving(groups=2, rollout=rollout)
    found = predict(Snapshot((before,), pods(before), (revision("aa", before),)), [serving(2, 1, 1, rollout=rollout)])
    assert names(found.removed) == {"1-prefill-0-0", "1-decode-0-0"}
    assert names(found.created) == {"0-prefill-1-0"}


def test_a_group_that_has_followed_a_rollout_by_role_is_of_the_revision_in_the_status_whatever_its_older_pods_say() -> None:
    rollout = limited(partition=1)
    followed, now = serving(images="ba", rollout=rollout), serving(images="bb", rollout=rollout)
    now["status"] |= {"currentRevision": "ba", "updatedReplicas": 0}
    there = pods(followed)
    there[1]["metadata"]["labels"]["modelserving.volcano.sh/revision"] = "aa"
    there[0]["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
    found = predict(Snapshot((now,), there, (revision("ba", followed),)), [serving(2, 1, images="bb", rollout=rollout)])
    assert found.change == "nothing"


def test_a_lost_group_below_the_partition_comes_back_at_its_own_number_as_it_was() -> None:
    rollout = limited(partition=1)
    before = serving(groups=2, rollout=rollout)
    there = Snapshot((before,), pods(before, groups=range(1, 2)), (revision("aa", before),))
    assert names(predict(there, [before]).created) == {"0-prefill-0-0", "0-decode-0-0"}
    found = predict(there, [serving(2, 1, 2, images="bb", rollout=rollout)])
    of_group = [f"{one}-0" for one in ("prefill-0", "decode-0")]
    assert names(found.created) == {*(f"0-{one}" for one in of_group), *(f"1-{one}" for one in of_group), "1-prefill-1-0"}


def test_groups_below_the_partition_are_the_last_to_go_ready_or_not() -> None:
    before, after = (serving(groups=groups, rollout=limited(partition=1)) for groups in (2, 1))
    assert names(predict(snapshot(before, unready="pd-0"), [after]).kept) == {"0-prefill-0-0", "0-decode-0-0"}


def test_a_group_that_does_not_run_rolls_before_one_that_does() -> None:
    found = predict(snapshot(serving(groups=2), unready="pd-0"), [serving(groups=2, images="bb")])
    assert found.capacity_before.groups == found.capacity_lowest.groups == 1


def test_an_updated_group_that_grows_holds_the_rollout_up_until_it_is_ready() -> None:
    old, new = serving(groups=3), serving(groups=3, images="bb")
    new["status"] |= {"currentRevision": "aa", "updatedReplicas": 1}
    there = pods(old, groups=range(2)) + pods(new, groups=range(2, 3))
    found = predict(Snapshot((new,), there), [serving(2, 1, 3, images="bb")])
    assert found.capacity_lowest == Capacity(3, 2, 2)


def test_a_group_that_is_terminating_is_made_again_after_the_last_and_roles_that_are_in_their_own_group() -> None:
    for rollout, made in ((None, 2), (BY_ROLE, 0)):
        before = serving(groups=2, rollout=rollout)
        there = pods(before)
        for one in there[:2]:
            one["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        found = predict(Snapshot((before,), there), [before])
        assert names(found.created) == {f"{made}-prefill-0-0", f"{made}-decode-0-0"}
        assert found.removed == {}


def test_a_rollout_by_role_leaves_a_role_alone_whose_template_did_not_change() -> None:
    found = edited(serving(1, 2, rollout=BY_ROLE), serving(1, 2, images="ba", rollout=BY_ROLE))
    assert found.change == "rolled by role"
    assert names(found.removed) == names(found.created) == {"0-prefill-0-0"}
    assert names(found.kept) == {"0-decode-0-0", "0-decode-1-0"}
    assert found.capacity_lowest == Capacity(0, 2, 0)
    assert found.names_are_certain


def test_a_rollout_by_role_takes_the_role_down_in_all_groups_at_once() -> None:
    found = edited(serving(groups=2, rollout=BY_ROLE), serving(groups=2, images="ab", rollout=BY_ROLE))
    assert found.capacity_lowest == Capacity(2, 0, 0)
    assert names(found.created) == {"0-decode-0-0", "1-decode-0-0"}


def test_a_limit_of_the_role_lets_its_instances_roll_one_after_the_other() -> None:
    before = serving(2, 1, rollout=BY_ROLE)
    after = serving(2, 1, images="ba", rollout=BY_ROLE)
    after["spec"]["template"]["roles"][0]["maxUnavailable"] = 1
    found = edited(before, after)
    assert found.capacity_lowest == Capacity(1, 1, 1)
    assert names(found.created) == {"0-prefill-1-0", "0-prefill-2-0"}
    assert found.names_are_certain


def test_without_a_limit_all_instances_of_a_role_roll_together_and_their_numbers_are_not_certain() -> None:
    found = edited(serving(2, 1, rollout=BY_ROLE), serving(2, 1, images="ba", rollout=BY_ROLE))
    assert found.capacity_lowest == Capacity(0, 1, 0)
    assert len(found.created) == 2
    assert not found.names_are_certain


def test_a_limit_alone_rolls_nothing() -> None:
    after = serving(2, 1, rollout=BY_ROLE)
    after["spec"]["template"]["roles"][0]["maxUnavailable"] = 1
    after["spec"] |= {"recoveryPolicy": "RoleRecreate"}
    assert edited(serving(2, 1), after).change == "nothing"


def test_another_order_of_the_roles_is_another_revision() -> None:
    after = serving()
    after["spec"]["template"]["roles"].reverse()
    assert edited(serving(), after).change == "groups rolled"
    after["spec"]["rolloutStrategy"] = BY_ROLE
    assert edited(serving(), after).change == "nothing"


def test_a_role_that_is_declared_no_more_goes_in_a_rollout_by_role() -> None:
    before = serving(rollout=BY_ROLE)
    before["spec"]["template"]["roles"].append(role("encode", 1, "a"))
    found = edited(before, serving(rollout=BY_ROLE))
    assert names(found.removed) == {"0-encode-0-0"}
    assert names(found.kept) == {"0-prefill-0-0", "0-decode-0-0"}


def test_an_instance_of_several_pods_is_made_and_taken_whole() -> None:
    before, after = serving(), serving()
    before["spec"]["template"]["roles"][1] = role("decode", 1, "a", workers=1)
    after["spec"]["template"]["roles"][1] = role("decode", 2, "a", workers=1)
    found = edited(before, after)
    assert names(found.created) == {"0-decode-1-0", "0-decode-1-1"}
    assert found.capacity_after == Capacity(1, 2, 1)
    assert found.npus_after[NPU] == 5 * DIES


def test_an_instance_that_lacks_a_pod_goes_before_one_that_is_whole() -> None:
    before, after = serving(), serving()
    before["spec"]["template"]["roles"][1] = role("decode", 2, "a", workers=1)
    after["spec"]["template"]["roles"][1] = role("decode", 1, "a", workers=1)
    there = tuple(one for one in pods(before) if not one["metadata"]["name"].endswith("decode-0-1"))
    assert names(predict(Snapshot((before,), there), [after]).removed) == {"0-decode-0-0"}


def test_a_template_and_a_higher_ratio_at_once_make_pods_only_to_delete_them() -> None:
    before, after = snapshot(serving()), serving(2, 1, images="bb")
    found = predict(before, [after])
    assert found.change == "groups rolled"
    assert names(found.churned) == {"0-prefill-1-0"}
    assert found.npus_most[NPU] == 3 * DIES
    assert steps(before, [after]) == ({"prefill": 1, "decode": 1}, {"prefill": 2, "decode": 1})


@pytest.mark.parametrize(
    "after",
    [
        pytest.param(serving(1, 1, images="bb"), id="a template and a lower ratio"),
        pytest.param(serving(2, 1, 2, images="bb"), id="a template and more groups"),
        pytest.param(serving(3, 1), id="a higher ratio"),
        pytest.param(serving(3, 1, images="bb", rollout=BY_ROLE), id="a template and a higher ratio, by role"),
    ],
)
def test_what_makes_no_pod_in_vain_is_one_step(after: Object) -> None:
    before = snapshot(serving(2, 1))
    assert predict(before, [after]).churned == ()
    assert steps(before, [after]) is None


def test_of_a_ratio_that_rises_and_falls_the_first_step_has_the_lower_number_of_each_role() -> None:
    before, after = snapshot(serving(2, 1)), serving(1, 2, images="bb")
    first, second = steps(before, [after]) or ({}, {})
    assert (first, second) == ({"prefill": 1, "decode": 1}, {"prefill": 1, "decode": 2})
    reached = serving(first["prefill"], first["decode"], images="bb")
    assert predict(before, [reached]).churned == ()
    assert predict(snapshot(reached), [after]).churned == ()


def test_a_pod_made_in_vain_that_no_order_avoids_is_told_and_not_refused() -> None:
    after = serving()
    after["spec"]["template"]["roles"][1] = role("decode", 1, "a", workers=1)
    before = snapshot(serving())
    assert names(predict(before, [after]).churned) == {"0-decode-0-1"}
    assert steps(before, [after]) is None


def halfway(ratio: int = 1) -> Snapshot:
    """Two groups in the middle of a roll from image a to b: the last is new, and its engine does not become ready."""
    old, new = serving(groups=2), serving(ratio, 1, 2, images="bb")
    new["status"] |= {"currentRevision": "aa", "updatedReplicas": 1}
    there = pods(old, groups=range(1)) + pods(serving(groups=2, images="bb"), groups=range(1, 2), unready="pd")
    return Snapshot((new,), there, (revision("aa", old), revision("bb", new)))


def test_a_rollout_that_is_under_way_goes_on_with_the_groups_that_are_left() -> None:
    found = predict(halfway(), [serving(groups=2, images="bb")])
    assert names(found.removed) == {"0-prefill-0-0", "0-decode-0-0"}
    assert names(found.created) == {"2-prefill-0-0", "2-decode-0-0"}


def test_going_back_to_the_template_of_before_rolls_only_what_had_left_it() -> None:
    found = predict(halfway(), [serving(groups=2)])
    assert names(found.kept) == {"0-prefill-0-0", "0-decode-0-0"}
    assert names(found.created) == names(found.removed) == {"1-prefill-0-0", "1-decode-0-0"}


def test_more_instances_before_a_rollout_has_come_to_its_end_are_made_in_vain() -> None:
    after = serving(2, 1, 2, images="bb")
    assert names(predict(halfway(), [after]).churned) == {"0-prefill-1-0"}
    assert steps(halfway(), [after]) is not None


def test_after_a_rollout_by_role_the_older_revision_on_untouched_pods_means_nothing() -> None:
    before = serving(images="ba", rollout=BY_ROLE)
    there = pods(before)
    there[1]["metadata"]["labels"]["modelserving.volcano.sh/revision"] = "aa"
    for rollout in (BY_ROLE, None):
        assert predict(Snapshot((before,), there), [serving(images="ba", rollout=rollout)]).change == "nothing"
    found = predict(Snapshot((before,), there), [serving(images="ca", rollout=BY_ROLE)])
    assert names(found.kept) == {"0-decode-0-0"}


def test_a_pod_of_the_template_of_before_that_is_still_terminating_is_no_measure() -> None:
    before = serving(images="ab", rollout=BY_ROLE)
    there = pods(before)
    old = pod("pd-0-decode-0-0", serving()["spec"]["template"]["roles"][1], "aa", deletionTimestamp="2026-01-01T00:00:00Z")
    new = pod("pd-0-decode-1-0", before["spec"]["template"]["roles"][1], "ab")
    found = predict(Snapshot((before,), (there[0], old, new)), [serving(images="bb", rollout=BY_ROLE)])
    assert names(found.kept) == {"0-decode-1-0"}


def test_in_the_middle_of_a_rollout_by_role_untouched_pods_are_known_by_their_revision() -> None:
    old, new = serving(2, 1, rollout=BY_ROLE), serving(2, 1, images="ba", rollout=BY_ROLE)
    new["status"] |= {"currentRevision": "aa", "updatedReplicas": 0}
    there = pods(old)
    there[0]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    found = predict(Snapshot((new,), there, (revision("aa", old),)), [new])
    assert names(found.kept) == {"0-decode-0-0"}
    assert names(found.removed) == {"0-prefill-1-0"}, "what is terminating already is no effect of the edit"


def test_pods_that_are_missing_are_made() -> None:
    found = predict(Snapshot((serving(2, 1),), pods(serving(1, 1))), [serving(2, 1)])
    assert names(found.created) == {"0-prefill-1-0"}


def test_a_deployment_that_is_not_there_is_created_and_one_that_is_declared_no_more_removed() -> None:
    created = predict(Snapshot(), [serving(2, 1)])
    assert (created.change, len(created.created), created.capacity_after) == ("created", 3, Capacity(2, 1, 1))
    removed = predict(snapshot(serving(2, 1)), [])
    assert (removed.change, len(removed.removed), removed.capacity_before) == ("removed", 3, Capacity(2, 1, 1))
    assert removed.capacity_lowest == removed.capacity_after == Capacity(0, 0, 0)
    assert (removed.npus_before[NPU], removed.npus_after[NPU]) == (3 * DIES, 0)


def test_a_modelserving_of_another_name_is_ready_before_the_one_it_replaces_goes() -> None:
    found = predict(snapshot(serving(2, 1)), [serving(1, 1, name="pd-abc1234")])
    assert found.change == "replaced"
    assert set(found.created) == {"pd-abc1234-0-prefill-0-0", "pd-abc1234-0-decode-0-0"}
    assert len(found.removed) == 3
    assert found.capacity_lowest == Capacity(1, 1, 1)
    assert (found.npus_before[NPU], found.npus_most[NPU], found.npus_after[NPU]) == (3 * DIES, 5 * DIES, 2 * DIES)


def test_a_second_modelserving_beside_the_first_touches_none_of_its_pods() -> None:
    before = serving(2, 1)
    found = predict(snapshot(before), [before, serving(1, 1, name="pd-abc1234")])
    assert (found.change, len(found.kept), len(found.created)) == ("created", 3, 2)
    back = predict(Snapshot((before, serving(name="pd-abc1234")), pods(before) + pods(serving(name="pd-abc1234"))), [before])
    assert (back.change, len(back.kept), len(back.removed)) == ("removed", 3, 2)
    assert back.capacity_lowest == Capacity(2, 1, 1)


def test_what_the_api_server_would_have_filled_in_is_one_of_each() -> None:
    bare = serving()
    del bare["spec"]["replicas"], bare["status"]
    for one in bare["spec"]["template"]["roles"]:
        del one["replicas"], one["workerReplicas"]
    assert names(predict(Snapshot(), [bare]).created) == {"0-prefill-0-0", "0-decode-0-0"}


ratios = st.integers(0, 3)
edits = st.builds(
    serving,
    ratios,
    ratios,
    ratios,
    images=st.sampled_from(["aa", "ab", "ba", "bb"]),
    rollout=st.sampled_from([None, BY_ROLE, *(limited(maxUnavailable=limit) for limit in (1, 2, "50%", "100%"))]),
)


@settings(max_examples=300, deadline=None)
@given(edits, edits, st.sampled_from(["none", "prefill-0", "pd-1", "decode"]))
def test_every_edit_ends_with_what_is_declared_and_accounts_for_every_pod(before: Object, after: Object, unready: str) -> None:
    there = snapshot(before, unready=unready)
    found = predict(there, [after])
    of_group = sum(one["replicas"] for one in after["spec"]["template"]["roles"])
    assert len(found.kept) + len(found.created) == after["spec"]["replicas"] * of_group
    uids = {item["metadata"]["name"]: item["metadata"]["uid"] for item in there.pods}
    assert {**found.kept, **found.removed} == uids
    assert not found.kept.keys() & found.removed.keys()
    assert len(set(found.created) | found.kept.keys()) == len(found.created) + len(found.kept)
    assert found.capacity_lowest & found.capacity_before & found.capacity_after == found.capacity_lowest
    assert found.capacity_after.prefill + found.capacity_after.decode == len(found.kept) + len(found.created)
    assert found.npus_most | found.npus_before | found.npus_after == found.npus_most
    assert (found.change == "nothing") == (not found.created and not found.removed)


@settings(max_examples=100, deadline=None)
@given(edits, edits)
def test_neither_of_two_steps_makes_pods_in_vain(before: Object, after: Object) -> None:
    found = steps(snapshot(before), [after])
    if found is None:
        return
    first = copy.deepcopy(after)
    for one in first["spec"]["template"]["roles"]:
        one["replicas"] = found[0][one["name"]]
    assert predict(snapshot(before), [first]).churned == ()
    assert predict(snapshot(first), [after]).churned == ()


def node(name: str, dies: int, **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": spec, "status": {"allocatable": {NPU: str(dies), "cpu": "64", "memory": "1Gi"}}}


def placed(on: str | None, phase: str = "Running", init: int = 0) -> Object:
    spec: Object = {**template("a")["spec"], **({"nodeName": on} if on else {})}
    spec["initContainers"] = [{"name": "check", "resources": {"requests": {NPU: str(init)}}}]
    return {"metadata": {"namespace": "a"}, "spec": spec, "status": {"phase": phase}}


def test_free_npus_are_what_schedulable_nodes_have_beyond_the_pods_that_have_not_ended() -> None:
    nodes = [node("a", 32), node("b", 32), node("cordoned", 32, unschedulable=True)]
    there = [placed("a"), placed("b", init=20), placed("b", "Succeeded"), placed(None, "Pending"), placed("cordoned")]
    found = read_room(nodes, there)
    assert found.free == {"a": {NPU: 32 - DIES}, "b": {NPU: 12}}
    assert found.held == {"a": {NPU: DIES + 20}}
    assert found.left == {NPU: 64 - DIES - 20}
    assert read_room([node("a", DIES), node("b", 8)], [placed("a"), placed("a")]).left == {NPU: 8}


def test_npus_that_waiting_pods_ask_for_are_wanted_and_not_held() -> None:
    item = serving(2, 1)
    there = pods(item)
    for waiting in there[1:]:
        waiting["spec"] = {key: value for key, value in waiting["spec"].items() if key != "nodeName"}
    there[0]["status"]["phase"] = "Failed"
    found = predict(Snapshot((item,), there), [item])
    assert (found.npus_before[NPU], found.npus_most[NPU], found.npus_after[NPU]) == (0, 3 * DIES, 3 * DIES)
    there[0]["status"]["phase"] = "Running"
    assert predict(Snapshot((item,), there), [item]).npus_before[NPU] == DIES
    going = predict(Snapshot((item,), there), [])
    assert (going.npus_before[NPU], going.npus_most[NPU]) == (DIES, DIES)
