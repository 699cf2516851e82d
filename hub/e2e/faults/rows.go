package main

// A row is a fault of the field, what has to hold while it lasts and after it, and the
// tests that hold it to that.
type row struct {
	id, fault, criterion string
	tests                []test
	// gap is what of the criterion no test looks at, and why.
	gap string
}

// A test is one of a room's.
type test struct{ room, name string }

func (t test) String() string { return t.room + " " + t.name }

// of are tests of one room.
func of(room string, names ...string) []test {
	out := make([]test, len(names))
	for i, name := range names {
		out[i] = test{room, name}
	}
	return out
}

// all joins the tests of several rooms.
func all(rooms ...[]test) (out []test) {
	for _, r := range rooms {
		out = append(out, r...)
	}
	return out
}

var rows = []row{
	{id: "F1", fault: "the hub is killed with kill -9 under writes, 200 times",
		criterion: "nothing acknowledged is lost, the database is sound, a start takes 3 s at most, no node becomes NotReady",
		tests: all(
			of("hub/e2e", "TestKillingTheHubLosesNothing"),
			of("hub/store", "TestNothingAcknowledgedIsLostByKill9", "TestACommitIsAllOrNothing"))},
	{id: "F1b", fault: "of two hubs on a PostgreSQL database, the one that leads is killed with kill -9 under " +
		"writes, 100 times, frozen for a minute, and ended in order",
		criterion: "the other leads after 10 s at most, nothing acknowledged is lost, the frozen one writes nothing " +
			"when it goes on, nobody is evicted, no container restarts; after an orderly end writes go on within 2 s",
		tests: all(
			of("hub/e2e", "TestAnotherHubLeadsWhenTheLeaderIsKilled"),
			of("hub/store", "TestADeposedLeaderWritesNothing", "TestALeaderThatIsFrozenInATransactionHoldsNobodyUp"),
			of("hub/leader", "TestAnyInterleavingHasOneWriterAtATime"))},
	{id: "F1c", fault: "the PostgreSQL server is killed with kill -9 under writes, ends connections, says nothing, " +
		"takes no writes; its line is cut in the middle of a COMMIT; a standby takes over",
		criterion: "nothing acknowledged is lost and nothing is done twice, whatever synchronous_commit the role has; " +
			"who asks is told within seconds; a standby that lacks the newest is noticed, and no device is told anything " +
			"before resume",
		tests: of("hub/store", "TestNothingAcknowledgedIsLostByKill9OfTheServer", "TestConnectionsThatAreEndedAreMadeAnew",
			"TestAServerThatSaysNothingIsGivenUp", "TestAServerThatTakesNoWritesIsTriedAgain",
			"TestACommitThatWasCutOffIsMadeOnce", "TestAPlanInDoubtWaitsUntilItIsKnown",
			"TestCommitsAreDurableWhateverTheServersDefault", "TestAPoolerKeepsASessionTogetherOrIsRefused",
			"TestAStandbyThatTakesOver", "TestAStandbyThatTakesOverAndLacksTheNewest")},
	{id: "F1d", fault: "the disk with PostgreSQL's data and its log is full",
		criterion: "the server ends; the hub stays, reads and shows, says what is wrong and where to look, loses " +
			"nothing acknowledged, and writes again by itself once there is room",
		tests: all(
			of("hub/e2e", "TestPostgresWhoseLogHasNoRoom"),
			of("hub/store", "TestAFullDiskOfTheServer"))},
	{id: "F2", fault: "the hub's power is cut",
		criterion: "whatever the disk had been told to keep is there: the database opens, is sound and has all that was " +
			"acknowledged",
		tests: all(
			of("hub/e2e", "TestAPowerCutOfTheHub"),
			of("hub/pki", "TestPowerFailsInTheMiddleOfAChange"))},
	{id: "F3", fault: "the agent is killed with kill -9 at every step, and 60 times at random while what it should " +
		"run changes",
		criterion: "no container twice, none left over, no workload restarted; what is wanted runs",
		tests: all(
			of("hub/e2e", "TestKillingTheAgentAtRandomMoments"),
			of("device/agent", "TestAnAgentKilledAtAnyStepConverges", "TestRealKilledAgent"),
			of("device/volume", "TestAnAgentThatIsKilledWhileItCopiesAnImage"),
			of("device/memory", "TestAnAgentKilledAtAnyFileOperationForgetsNothing"))},
	{id: "F4", fault: "a device reboots while the hub is away",
		criterion: "all that was wanted runs within 60 s, from the device's own disk",
		tests: all(
			of("hub/e2e", "TestRestarts"),
			of("hub/sim", "TestFleetADeviceThatBootsWithoutAHubRunsEverythingAgain"),
			of("device/agent", "TestARebootWithoutTheHubBringsEverythingUpAgain"))},
	{id: "F5", fault: "the engine hangs, and is gone",
		criterion: "the node is NotReady within 40 s and says why, its lease goes on, nothing is deleted, it recovers " +
			"by itself",
		tests: all(
			of("hub/e2e", "TestAnEngineThatHangs"),
			of("device/agent", "TestAnEngineThatIsAwayMakesTheNodeNotReadyAfter30Seconds",
				"TestAnEngineThatHangsMakesTheNodeNotReadyAfter40Seconds", "TestAnEngineThatIsAwayIsNoReasonForAnotherNetwork"))},
	{id: "F6", fault: "the network between device and hub is parted, with and without a word",
		criterion: "the node becomes Unknown by its lease alone; workloads run on; after the end nothing restarts, " +
			"events come once and in order",
		tests: all(
			of("hub/e2e", "TestAPartition", "TestASilentDevice"),
			of("hub/sim", "TestFleetASilentDeviceLosesItsPodAndStopsItFirstWhenItReturns",
				"TestFleetAnySingleMessageMayBeLostDoubledOrLate"),
			of("device/link", "TestAHalfOpenLinkIsNoticedWithinTwentySeconds",
				"TestEventsWaitForTheHubInOrderAndTheirOverflowIsTold"))},
	{id: "F7", fault: "the network carries one way only",
		criterion: "the device hears no answer and leaves the link within 20 s: no node looks well that takes nothing",
		tests: all(
			of("hub/e2e", "TestALineThatCarriesOneWay"),
			of("device/link", "TestAHubThatAcknowledgesNothingIsLeft"))},
	{id: "F7b", fault: "the network carries 20 kbit/s, and 40 kB and more are to be said either way",
		criterion: "all arrives over one link, the node stays ready meanwhile",
		tests: all(
			of("hub/e2e", "TestALineOfTwentyKilobits"),
			of("hub/sim", "TestALineOf20KilobitsCarriesBothWaysAtOnce"),
			of("hub/broker", "TestAPacketThatComesSlowlyIsLife", "TestAReaderOfAHundredBytesASecondDoesNotStay",
				"TestALineThatDiesIsLeftInTime"))},
	{id: "F7c", fault: "the network loses large packets without a word, as a tunnel or a mobile line may",
		criterion: "devices, browsers and kubectl get through: no packet carries more than 1,024 bytes",
		tests: all(
			of("hub/e2e", "TestALineThatLosesLargePackets"),
			of("shared/line", "TestPacketsAreSmallBothWays"),
			of("device/link", "TestABrokerIsAskedForSmallPackets"))},
	{id: "F8", fault: "a link flaps",
		criterion: "nobody is evicted, nothing restarts, Ready does not follow every turn, the logs are bounded",
		tests: all(
			of("hub/e2e", "TestAFlappingLine"),
			of("hub/sim", "TestFleetAFlappingLinkDisturbsNobody"),
			of("hub/lifecycle", "TestFlapping"))},
	{id: "F8b", fault: "a bad night of a thousand nodes: sites go dark, links flap, containers crash, strangers try names",
		criterion: "the hub's log of eight hours has 10 MB at most, an agent's is short",
		tests:     of("hub/sim", "TestFleetTheLogOfABadNightIsShort", "TestFleetTheLogOfAnAgentWithoutAHubIsShort")},
	{id: "F9", fault: "a whole site is dark; all sites are; the hub itself stands still",
		criterion: "a dark site loses its pods at its rate; where all are dark, or the hub stood still, nobody is evicted",
		tests: all(
			of("hub/e2e", "TestAHubThatStandsStill"),
			of("hub/sim", "TestFleetACutSiteLosesItsPodsAtItsRateAndKeepsThemWithHold",
				"TestFleetWhenEverySiteIsDarkNobodyIsEvicted", "TestFleetALargeSiteThatIsPartlyDarkLosesItsNodesSlowly"),
			of("hub/control", "TestStories", "TestAfterAStallEverybodyHasTheirFullGrace"),
			of("hub/lifecycle", "TestScenarioStateOfSites"))},
	{id: "F10", fault: "a thousand devices come back at once after the hub's death",
		criterion: "all have their lease within 60 s, nobody is called Unknown, the hub needs less than 128 MiB",
		tests: all(
			of("hub/e2e", "TestAHerdComesBack"),
			of("hub/sim", "TestFleetAnOutageOfTheHubIsNobodysSilence"),
			of("hub/broker", "TestASiteBehindOneAddressIsBackWithinTwoLeaseIntervals"))},
	{id: "F11", fault: "a device reads slowly, or not at all, or asks for no keep-alive",
		criterion: "nobody else waits; who does not read is cut, who reads slowly gets it all",
		tests: of("hub/broker", "TestM3ADeviceThatStopsReadingHoldsUpNobodyAndIsCut",
			"TestM3ASlowReaderGetsItAllAndIsHeardMeanwhile",
			"TestM13SilenceIsNoticedWhateverKeepAliveIsAskedFor", "TestM5WhoDoesNotFinishConnectIsCutAfterTenSeconds")},
	{id: "F12", fault: "the hub's disk is full",
		criterion: "it reads and shows, writes are answered 507 with the reason, leases count, deleting makes room, " +
			"nothing is corrupt",
		tests: all(
			of("hub/e2e", "TestAFullDiskOfTheHub"),
			of("hub/store", "TestAFullDiskLeavesReadingAndDeletingAndHealsItself", "TestWhatAFullDiskDidNotTakeIsSaidLater"),
			of("hub/sim", "TestFleetADiskThatFailsSilencesNobody", "TestFleetAFullDiskLetsPeopleMakeRoom",
				"TestFleetAHubStartsOnAFullDisk", "TestFleetAHubWhoseDiskIsFullForgetsNoSignOfLife"),
			of("hub/serve", "TestAFullDiskIsToldAsThat"))},
	{id: "F12b", fault: "the hub's disk fails, or its file system becomes read-only; its database is moved or " +
		"removed while it runs",
		criterion: "it reads and shows, leases count, writes are answered 503 and the log says what to do; it goes on " +
			"by itself, and nothing acknowledged is lost",
		tests: all(
			of("hub/e2e", "TestADiskOfTheHubThatFails"),
			of("hub/store", "TestADatabaseThatIsMovedTakesNothingUntilItIsBack",
				"TestADatabaseThatIsRemovedIsBackAtTheNextStart", "TestTheLogOfADatabaseThatIsGoneIsKept"))},
	{id: "F13", fault: "a device's disk is full, or read-only",
		criterion: "the node says so, keeps its lease and its pods; images in use are never deleted",
		tests: all(
			of("hub/e2e", "TestAFullDiskOfTheDevice"),
			of("device/agent", "TestADiskThatTakesNothingKeepsThePods", "TestUnderDiskPressureWhatNobodyNeedsGoesFirst",
				"TestWhoseAnImageIs"),
			of("device/memory", "TestAFullDiskTakesTheNextDesiredState"),
			of("device/hardware", "TestHealth", "TestErrorsOfADiskAreThoseOfItsOwnPartitions"))},
	{id: "F14", fault: "the hub's files are torn, flipped, truncated, gone, of a newer or an older version",
		criterion: "it starts from a backup and says so loudly, or refuses and says which file; never silently; a newer " +
			"database is refused, an older one migrated",
		tests: all(
			of("hub/e2e", "TestTornFilesOfTheHub", "TestTheHubRefusesToStart"),
			of("hub/store", "TestADamagedDatabaseIsReplacedLoudly", "TestADamagedBackupIsSkippedForAnOlderOne",
				"TestADamagedAuditStopsNoCommit", "TestWhatIsReadWhileADatabaseIsCheckedIsWhatItHas",
				"TestDatabasesOfOlderVersionsOpen", "TestAMigrationKeepsTheOldDatabaseAndChangesEveryKind",
				"TestADatabaseThatIsOlderThanItWasSaysSo", "TestAnOlderDatabaseOfTheSameObjectsSaysSo"),
			of("hub/history", "TestATornFile"),
			of("hub/serve", "TestARestoredDatabaseMaySayWhatItLikes"))},
	{id: "F15", fault: "clocks jump an hour, begin in 1970, or pass 2038",
		criterion: "no lease flips, no certificate is refused for it, no workload changes; ClockSynced says it",
		tests: all(
			of("hub/e2e", "TestClocksThatAreWrong"),
			of("hub/sim", "TestFleetTheClockOfADeviceDecidesNothing", "TestFleetTheHubsOwnClockMayStartInThePast"),
			of("hub/control", "TestAClockThatIsSetWhileTheHubRunsMovesNoDeadline"),
			of("hub/pki", "TestCertificatesAreValidByTheHubsTimeAndByTheMachines"),
			of("hub/store", "TestBackupsOfAHubWhoseClockBeginsInThePast", "TestRecordsOfAHubWhoseClockIsBehindAreKept"),
			of("device/plan", "TestAPodFromBeforeARebootWithAClockBehindItStartsAnew", "TestBackOffIgnoresTheEnginesClock"),
			of("device/agent", "TestADeadlineCountsByTheMonotonicClockOverRestartsOfTheAgent"),
			of("device/hardware", "TestHealth"))},
	{id: "F16", fault: "two devices have one identity",
		criterion: "the incumbent is not disturbed, the other is refused and named; both heal without a restart",
		tests: all(
			of("hub/sim", "TestFleetOfTwoDevicesOfOneNameTheIncumbentStays", "TestFleetACloneDisturbsNobodyAndEverythingHeals",
				"TestFleetAReplacedDeviceIsBelievedNoMore"),
			of("hub/broker", "TestS3SeeM1AndS4TheIncumbentStays", "TestM6OneNodeHasOneSessionWhateverItsMachine"),
			of("hub/node", "TestTwoAgentsWithOneIdentityAreShownOnceAndForAWhile", "TestWhoMayTakeAnIdentityOver"))},
	{id: "F17", fault: "files of the agent are empty, torn, flipped or gone",
		criterion: "the agent starts and is right again, or says which file and what to do; workloads are not touched",
		tests: all(
			of("hub/e2e", "TestTornFilesOfTheDevice", "TestAfterDamage", "TestABrokenIdentity"),
			of("device/agent", "TestNoFaultOfAFileTakesThePods", "TestWithoutAnyDesiredStateWhatThereIsIsStarted",
				"TestAPodThatHasEndedForTheHubHasEnded"),
			of("device/memory", "TestOneDamagedCopyIsNotTheEnd", "TestATornWriteLeavesTheOneBefore",
				"TestBrokenFilesAreSaidLoudlyAndAreNotTheEnd"))},
	{id: "F18", fault: "the kernel kills the agent for want of memory; the agent stands still",
		criterion: "64 MiB are enough; workloads are not touched, it goes on as if nothing had been",
		tests:     of("hub/e2e", "TestAnAgentWithoutMemory", "TestAnAgentThatStandsStill")},
	{id: "F19", fault: "hub and agents are of other versions",
		criterion: "each works with the other; either is upgraded in place and no container restarts; an older hub " +
			"refuses a newer database; unknown fields are ignored, older databases, desired states and containers are taken over",
		tests: all(
			of("hub/e2e", "TestAnUpgradeFromAnOlderSchema", "TestAgentsOfOtherVersions"),
			of("shared/wire", "TestPayloadsAreWrittenAndReadAsTheGoldenFilesSay"),
			of("device/memory", "TestAnOlderAgentsDesiredStateIsTakenOver"),
			of("device/agent", "TestAnAgentTakesOverFromOlderOnesWithoutTouchingAContainer"),
			of("device/plan", "TestAnUpgradeOfTheAgentRestartsNothing"),
			of("hub/store", "TestDatabasesOfOlderVersionsOpen", "TestAnOlderBackupIsGenuine"),
			of("hub/serve", "TestEnrolmentsOfAnEarlierVersionAreTakenOverOnce"))},
	{id: "F20", fault: "a boot configuration breaks a board",
		criterion: "it goes back by itself, wherever the power fails; the rollout stops",
		tests: all(
			of("device/firmware", "TestATrialEndsKeptOrRolledBack", "TestWhereverThePowerFails",
				"TestWhereverThePowerFailsTwice", "TestAnAgentThatNeverRunsIsRolledBackByTheDeadman",
				"TestEachCheckThatFailsRollsBack"),
			of("hub/control", "TestStories"))},
	{id: "F21", fault: "a registry is away, or an image is of another architecture, damaged or none",
		criterion: "the pod says why (ImagePullBackOff, ErrImagePull …), what ran runs on",
		tests: of("device/agent", "TestImagesThatCannotBePulled", "TestAnImageThatIsThereWillDoWhenTheRegistryIsAway",
			"TestAnImageThatIsNoneIsAskedOfNoEngine", "TestAnImageVolumeWithoutItsImage")},
	{id: "F22", fault: "the hub is restored from an older backup",
		criterion: "it tells no device anything before an administrator says resume; workloads run on",
		tests: all(
			of("hub/e2e", "TestAnOldBackup", "TestARestoreWhileAnotherHubStandsBy"),
			of("hub/sim", "TestFleetAHubThatForgotTouchesNothingBeforeResume"),
			of("hub/store", "TestRestoreBringsABackupAndKeepsTheFormer", "TestARestoreLetsNobodyInAgain",
				"TestARestoreBringsNoAuthorityBack", "TestAStandbyHasWhatSomebodyElseWrote",
				"TestARestoreKeepsThoseWhoWereEnrolledSince", "TestRestoreRefusesWhatIsNoBackupAndChangesNothing"))},
	{id: "F23", fault: "a day, and five hundred devices for a while",
		criterion: "goroutines, open files and memory do not grow; hub and devices agree in the end",
		tests: all(
			of("hub/e2e", "TestASoak"),
			of("hub/sim", "TestFleetADay"))},
	{id: "F24", fault: "SD cards wear out: a hundred idle nodes",
		criterion: "the hub writes less than 20 MB and syncs less than 240 times an hour, an agent writes less than 1 MB",
		tests: all(
			of("hub/e2e", "TestWear"),
			of("hub/sim", "TestFleetLeasesCauseNoCommitAndNoPass", "TestFleetAnIdleDeviceCostsFewBytes"))},
}
