package v1beta1

// QueueAllocationGateKey is the one name that Volcano v1.15.0 takes from volcano.sh/apis and that v1.14.0 lacks: Volcano builds
// its APIs from its own tree, and no version of the module has them. It names a scheduling gate of pods that ask for one.
const QueueAllocationGateKey = GroupName + "/queue-allocation-gate"
