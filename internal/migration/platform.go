package migration

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Platform describes a node, as far as it matters to processes that move there.
type Platform struct {
	Architecture string   `json:"architecture"` // as in GOARCH
	CPUModel     string   `json:"cpu_model"`
	CPUFeatures  []string `json:"cpu_features"` // as in /proc/cpuinfo
	Kernel       string   `json:"kernel"`
	CRIU         string   `json:"criu"`
	PageBytes    int      `json:"page_bytes"`
	// hierarchies: of version 1 by their controllers, that of version 2 as "unified"
	Cgroups []string `json:"cgroups"`
}

// maxListed bounds how many missing features a refusal names.
const maxListed = 20

// Compare lists obstacles to running the source's processes on the target, and differences that are only
// worth knowing. A process may have detected the CPU's features at its start, and keeps using them.
func Compare(source, target Platform) (problems []Problem, warnings []string) {
	if problems := CompareAnew(source, target); len(problems) > 0 {
		return problems, nil
	}
	if source.PageBytes != target.PageBytes {
		problems = append(problems, Problem{
			What:   fmt.Sprintf("page size %d", target.PageBytes),
			Why:    fmt.Sprintf("the container's memory has pages of %d bytes", source.PageBytes),
			Remedy: "choose a node with a kernel of the same page size",
		})
	}
	if missing := missingFeatures(source, target); len(missing) > 0 {
		problems = append(problems, Problem{
			What: "CPU " + bounded(target.CPUModel, maxName),
			Why:  "it lacks what the source's has and the container may use: " + listed(missing),
			Remedy: "choose a node whose CPU is the same or newer, or give virtual machines a common CPU " +
				"model",
		})
	}
	problems = append(problems, compareCgroups(source.Cgroups, target.Cgroups)...)
	criuProblem, criuWarning := compareCRIU(source.CRIU, target.CRIU)
	problems = append(problems, criuProblem...)
	warnings = append(compareKernels(source.Kernel, target.Kernel), criuWarning...)
	return problems, warnings
}

// CompareAnew lists obstacles to starting a workload of the source on the target. Its new processes detect
// for themselves what the CPU and the kernel can do.
func CompareAnew(source, target Platform) []Problem {
	if source.Architecture == target.Architecture {
		return nil
	}
	return []Problem{{
		What: "architecture " + bounded(target.Architecture, maxName),
		Why: fmt.Sprintf("the container runs on %s: its machine code and registers mean nothing there",
			bounded(source.Architecture, maxName)),
		Remedy: "choose a node of the same architecture",
	}}
}

// compareCgroups: a container sees its groups, may have made more within them, and is restored into groups
// of the same hierarchies. Additional hierarchies of the target do not matter, unless the source has none
// of version 1: an engine on a node with hierarchies of version 1 puts its containers into these.
func compareCgroups(source, target []string) []Problem {
	var missing []string
	for _, one := range source {
		if !slices.Contains(target, one) {
			missing = append(missing, bounded(one, maxName))
		}
	}
	why := "it lacks control group hierarchies that contain the container: " + listed(missing)
	if len(missing) == 0 {
		alone := []string{"unified"}
		if !slices.Equal(source, alone) || slices.Equal(target, alone) {
			return nil
		}
		why = "it has hierarchies of control groups of version 1 beside that of version 2, in which alone " +
			"the container is"
	}
	return []Problem{{
		What: "control groups of the target", Why: why,
		Remedy: "boot both nodes with the same systemd.unified_cgroup_hierarchy= and cgroup_no_v1=, or " +
			"choose another node",
	}}
}

// compareCRIU: a CRIU reads the images of older versions, and need not understand those of newer versions
// (https://criu.org/Postulates, "Protobuf images compatibility").
func compareCRIU(source, target string) ([]Problem, []string) {
	if source == target {
		return nil, nil
	}
	source, target = bounded(source, maxName), bounded(target, maxName)
	s, sok := version(source)
	t, tok := version(target)
	switch {
	case sok && tok && t[0] < s[0]:
		return []Problem{{
			What: "CRIU " + target,
			Why:  fmt.Sprintf("it may not be able to read images that the source's %s writes", source),
			Remedy: "install on the target the version of the source, or a newer one (godwit setup criu; " +
				"godwit doctor)",
		}}, nil
	case sok && tok && slices.Compare(t, s) < 0:
		return nil, []string{fmt.Sprintf("the target's CRIU %s is older than the source's %s", target,
			source)}
	case sok && tok:
		return nil, nil // newer
	}
	return nil, []string{fmt.Sprintf("versions of CRIU differ: %q at the source, %q at the target", source,
		target)}
}

// compareKernels: an older kernel may lack features that the processes use. Only the restore can find out,
// so there is no refusal.
func compareKernels(source, target string) []string {
	if source == target {
		return nil
	}
	source, target = bounded(source, maxName), bounded(target, maxName)
	s, sok := version(source)
	t, tok := version(target)
	if sok && tok && slices.Compare(t[:2], s[:2]) >= 0 {
		return nil
	}
	if sok && tok {
		return []string{fmt.Sprintf("the target's kernel %s is older than the source's %s: features of "+
			"the newer kernel that the container uses may be missing", target, source)}
	}
	return []string{fmt.Sprintf("kernels differ: %q at the source, %q at the target", source, target)}
}

// version parses up to three numbers at the beginning of a version; at least two are required.
func version(text string) ([]int, bool) {
	end := strings.IndexFunc(text, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	if end >= 0 {
		text = text[:end]
	}
	out := []int{0, 0, 0}
	parts := strings.Split(strings.TrimRight(text, "."), ".")
	for i, part := range parts[:min(len(parts), len(out))] {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil, false
		}
		out[i] = n
	}
	return out, len(parts) >= 2
}

// missingFeatures returns the features that a program at the source may have detected and the target lacks,
// sorted.
func missingFeatures(source, target Platform) []string {
	have := map[string]bool{}
	for _, feature := range target.CPUFeatures {
		have[feature] = true
	}
	if source.Architecture == "amd64" {
		for _, feature := range strings.Fields(kernelOnlyFeatures) {
			have[feature] = true
		}
	}
	var missing []string
	for _, feature := range source.CPUFeatures {
		if !have[feature] {
			have[feature] = true
			missing = append(missing, bounded(feature, maxName))
		}
	}
	slices.Sort(missing)
	return missing
}

func listed(names []string) string {
	if more := len(names) - maxListed; more > 0 {
		return fmt.Sprintf("%s, and %d more", strings.Join(names[:maxListed], " "), more)
	}
	return strings.Join(names, " ")
}

// kernelOnlyFeatures are flags of /proc/cpuinfo on x86 on which no program can depend: privileged
// instructions, virtualisation, mitigations, monitoring, properties of timers, and the kernel's own notes.
// Every other flag counts, even if this list does not know it yet (arch/x86/include/asm/cpufeatures.h in
// Linux 6.18). Flags that only mark an instruction as fast (erms, fsrm) are listed, too: the instruction
// works without them.
const kernelOnlyFeatures = `
	vme de pse msr pae mce apic mtrr pge mca pat pse36 pn dts acpi ss ht tm ia64 pbe mp nx pdpe1gb
	constant_tsc up art arch_perfmon pebs bts syscall32 sysenter32 rep_good amd_lbr_v2 lfence_rdtsc
	acc_power nopl always
	xtopology tsc_reliable nonstop_tsc cpuid extd_apicid amd_dcm aperfmperf rapl nonstop_tsc_s3 tsc_known_freq
	dtes64 monitor ds_cpl vmx smx est tm2 cid sdbg xtpr pdcm pcid dca x2apic tsc_deadline_timer hypervisor
	cmp_legacy svm extapic cr8_legacy ibs osvw skinit wdt tce nodeid_msr topoext perfctr_core perfctr_nb
	bpext ptsc
	perfctr_llc ring3mwait cpuid_fault cpb epb cat_l3 cat_l2 cdp_l3 cdp_l2 invpcid_single hw_pstate
	proc_feedback pti
	intel_ppin ssbd mba rsb_ctxsw ibrs ibpb stibp ibrs_enhanced xcompacted
	tpr_shadow vnmi flexpriority ept vpid vmmcall vmcall ept_ad pvunlock vcpupreempt tdx_guest
	tsc_adjust sgx smep erms invpcid cqm rdt_a smap intel_pt cqm_llc cqm_occup_llc cqm_mbm_total cqm_mbm_local
	split_lock_detect fsrm fzrm fsrs fsrc lass arch_perfmon_ext lam
	irperf xsaveerptr amd_ppin virt_ssbd cppc amd_psfd btc_no ibpb_ret brs perfmon_v2 ibpb_brtype
	dtherm ida arat pln pts hwp hwp_notify hwp_act_window hwp_epp hwp_pkg_req hfi
	npt lbrv svm_lock nrip_save tsc_scale vmcb_clean flushbyasid decodeassists pausefilter pfthreshold avic
	v_vmsave_vmload vgif x2avic v_spec_ctrl idle_hlt
	umip la57 sgx_lc bus_lock_detect overflow_recov succor smca
	tsx_force_abort md_clear hybrid_cpu pconfig arch_lbr ibt flush_l1d arch_capabilities core_capability
	spec_ctrl
	intel_stibp rtm_always_abort srbds_ctrl
	sme sev vm_page_flush sev_es v_tsc_aux sme_coherent debug_swap sev_snp svsm
	autoibrs null_sel_clr_base no_nested_data_bp wrmsr_xx_base_ns sbpb srso_no msr_imm amd_htr_cores
	cpuid_dep_fault tme fred wrmsrns mwaitx
`
