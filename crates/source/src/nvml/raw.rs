//! The calls that the wrapper lacks or gets wrong, and the only `unsafe` code of
//! the exporter.
//!
//! Symbols are optional: for a driver that is too old for a call, the call returns
//! [`NvmlError::FailedToLoadSymbol`]. It does not panic, unlike the generated methods
//! of the bindings. Objects that the library owns (event sets, samples) keep the
//! library open, so that they are freed before it is closed.
#![allow(unsafe_code)]

use std::{
    ffi::{OsStr, c_ulonglong},
    mem::ManuallyDrop,
    ops::Deref,
    ptr,
    sync::Arc,
};

use nvml_wrapper::{
    Device, Nvml,
    bitmasks::InitFlags,
    error::{NvmlError, nvml_sym, nvml_try},
};
use nvml_wrapper_sys::bindings::{
    NVML_GPM_METRICS_GET_VERSION, NVML_GPM_SUPPORT_VERSION, nvmlDevice_t, nvmlEventData_t,
    nvmlEventSet_t, nvmlEventTypeXidCriticalError, nvmlFieldValue_t, nvmlGpmMetricsGet_t,
    nvmlGpmSample_t, nvmlGpmSupport_t, nvmlGpuFabricInfo_t, nvmlGpuFabricInfoV_t,
    nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK,
    nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_UNKNOWN, nvmlPlatformInfo_v2_t, nvmlValue_t,
};

/// The error code "unknown version of the argument", which the wrapper does not name.
const ARGUMENT_VERSION_MISMATCH: u32 = 25;

/// The driver's library, loaded and initialized. It is shut down and closed when the
/// last owner is dropped.
#[derive(Debug)]
pub(super) struct Loaded(ManuallyDrop<Nvml>);

impl Loaded {
    /// Loads and initializes the library at `path`, or where the loader finds it.
    ///
    /// GPUs are not required: a broken one must not hide the others. They are attached: with
    /// `NO_ATTACH`, driver 580.159.04 lists none of them.
    pub(super) fn open(path: Option<&str>) -> Result<Self, NvmlError> {
        let open = |flags| {
            let mut builder = Nvml::builder();
            if let Some(path) = path {
                builder.lib_path(OsStr::new(path));
            }
            builder.flags(flags).init()
        };
        let nvml = match open(InitFlags::NO_GPUS) {
            // Drivers from before 2018 do not support flags.
            Err(NvmlError::FailedToLoadSymbol(_)) => open(InitFlags::empty()),
            result => result,
        }?;
        Ok(Self(ManuallyDrop::new(nvml)))
    }
}

impl Deref for Loaded {
    type Target = Nvml;

    fn deref(&self) -> &Nvml {
        &self.0
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        // The wrapper panics if the symbol is missing, so such a library stays open.
        if self.0.lib().nvmlShutdown.is_ok() {
            // SAFETY: dropped here and nowhere else, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        }
    }
}

/// Returns the handle of `device`.
fn handle(device: &Device<'_>) -> nvmlDevice_t {
    // SAFETY: the handle is only passed to the library that it came from,
    // which `device` borrows.
    unsafe { device.handle() }
}

/// Returns a number that identifies a device while the library is loaded.
pub(super) fn address(device: &Device<'_>) -> usize {
    handle(device) as usize
}

/// Returns the values of fields, each with its scope (the link, for fields of links),
/// in one call. Each value succeeds or fails separately.
pub(super) fn field_values(
    device: &Device<'_>,
    fields: &[(u32, u32)],
) -> Result<Vec<Result<u64, NvmlError>>, NvmlError> {
    let get = nvml_sym(device.nvml().lib().nvmlDeviceGetFieldValues.as_ref())?;
    let mut values: Vec<_> = fields
        .iter()
        .map(|&(id, scope)| nvmlFieldValue_t {
            fieldId: id,
            scopeId: scope,
            timestamp: 0,
            latencyUsec: 0,
            valueType: 0,
            // A value that the library does not write is unanswered.
            nvmlReturn: NvmlError::NotSupported.into(),
            value: nvmlValue_t { ullVal: 0 },
        })
        .collect();
    // No GPU has a million fields.
    let count = i32::try_from(values.len()).map_err(|_| NvmlError::InvalidArg)?;
    // SAFETY: the array has `count` elements, all initialized, and outlives the call.
    nvml_try(unsafe { get(handle(device), count, values.as_mut_ptr()) })?;
    Ok(values.iter().map(decode).collect())
}

fn decode(field: &nvmlFieldValue_t) -> Result<u64, NvmlError> {
    nvml_try(field.nvmlReturn)?;
    let value = &field.value;
    let negative = |_| NvmlError::UnexpectedVariant(field.valueType);
    // SAFETY: every bit pattern is a value of each member, and the union is
    // wholly initialized; `valueType` says which member the library wrote.
    unsafe {
        match field.valueType {
            0 => Ok(value.dVal as u64), // saturates
            1 => Ok(value.uiVal.into()),
            2 => Ok(value.ulVal), // 64 bits wherever the driver runs
            3 => Ok(value.ullVal),
            4 => u64::try_from(value.sllVal).map_err(negative),
            5 => u64::try_from(value.siVal).map_err(negative),
            6 => Ok(value.usVal.into()),
            other => Err(NvmlError::UnexpectedVariant(other)),
        }
    }
}

/// Returns the type of the far end of a link: 0 a GPU, 1 a POWER processor, 2 a
/// switch, 255 unknown. (The wrapper's own call always returns unknown.)
pub(super) fn remote_type(device: &Device<'_>, link: u32) -> Result<u32, NvmlError> {
    let get = nvml_sym(
        device
            .nvml()
            .lib()
            .nvmlDeviceGetNvLinkRemoteDeviceType
            .as_ref(),
    )?;
    let mut kind = 0;
    // SAFETY: `kind` outlives the call, which writes one value to it.
    nvml_try(unsafe { get(handle(device), link, &mut kind) })?;
    Ok(kind)
}

/// Returns an error counter of a link: 0 replay, 1 recovery, 2 CRC of flits, 3 CRC of
/// data, 4 corrected data. (The wrapper lacks the last one.)
pub(super) fn error_counter(
    device: &Device<'_>,
    link: u32,
    counter: u32,
) -> Result<u64, NvmlError> {
    let get = nvml_sym(device.nvml().lib().nvmlDeviceGetNvLinkErrorCounter.as_ref())?;
    let mut count: c_ulonglong = 0;
    // SAFETY: `count` outlives the call, which writes one value to it.
    nvml_try(unsafe { get(handle(device), link, counter, &mut count) })?;
    Ok(count)
}

/// Returns the distance of two GPUs in the PCIe tree: 0, 10, 20, 30, 40 or 50, as
/// `nvmlGpuTopologyLevel_t`. (The wrapper's own call consumes a device.)
pub(super) fn common_ancestor(a: &Device<'_>, b: &Device<'_>) -> Result<u32, NvmlError> {
    let get = nvml_sym(a.nvml().lib().nvmlDeviceGetTopologyCommonAncestor.as_ref())?;
    let mut level = 0;
    // SAFETY: both handles are of one library; `level` outlives the call.
    nvml_try(unsafe { get(handle(a), handle(b), &mut level) })?;
    Ok(level)
}

/// Returns whether the driver allows two GPUs to communicate over NVLink: 0 for yes,
/// else the reason, as `nvmlGpuP2PStatus_t`. (The wrapper fails for unknown reasons.)
pub(super) fn p2p_status(a: &Device<'_>, b: &Device<'_>) -> Result<u32, NvmlError> {
    let get = nvml_sym(a.nvml().lib().nvmlDeviceGetP2PStatus.as_ref())?;
    let mut status = nvmlGpuP2PStatus_enum_NVML_P2P_STATUS_UNKNOWN;
    let over = nvmlGpuP2PCapsIndex_enum_NVML_P2P_CAPS_INDEX_NVLINK;
    // SAFETY: both handles are of one library; `status` outlives the call.
    nvml_try(unsafe { get(handle(a), handle(b), over, &mut status) })?;
    Ok(status)
}

/// The NVLink fabric as a GPU sees it, with the library's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FabricInfo {
    /// UUID of the fabric's cluster; all zero if the fabric does not span nodes.
    pub(super) cluster_uuid: [u8; 16],
    /// The clique inside the cluster.
    pub(super) clique: u32,
    /// 0 not supported, 1 not started, 2 in progress, 3 completed.
    pub(super) state: u32,
    /// The result of the registration: an error code, 0 for success.
    pub(super) status: u32,
    /// `NVML_GPU_FABRIC_HEALTH_MASK_*`; absent in drivers that do not report it.
    pub(super) health: Option<u32>,
}

/// Returns the fabric, from the newest call that the driver supports: versions 3 and 2,
/// then the call without a version.
pub(super) fn fabric_info(device: &Device<'_>) -> Result<FabricInfo, NvmlError> {
    for version in [3, 2] {
        match fabric_info_versioned(device, version) {
            Err(
                NvmlError::UnexpectedVariant(ARGUMENT_VERSION_MISMATCH)
                | NvmlError::FailedToLoadSymbol(_)
                | NvmlError::FunctionNotFound
                | NvmlError::InvalidArg,
            ) => {}
            result => return result,
        }
    }
    let get = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuFabricInfo.as_ref())?;
    let mut info = nvmlGpuFabricInfo_t {
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
    };
    // SAFETY: `info` is the argument type of the call without a version.
    nvml_try(unsafe { get(handle(device), &mut info) })?;
    Ok(FabricInfo {
        cluster_uuid: info.clusterUuid,
        clique: info.cliqueId,
        state: info.state.into(),
        status: info.status,
        health: None,
    })
}

/// The place of a GPU in a rack, with the library's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlatformInfo {
    /// Serial number of the chassis, filled up with zeros; all zero where there is none.
    pub(super) chassis: [u8; 16],
    /// The slot of the chassis, with switch trays.
    pub(super) slot: u8,
    /// The compute tray of the chassis, without switch trays.
    pub(super) tray: u8,
}

/// Returns the place in the rack. Version 1 of the call has no serial number of the chassis.
pub(super) fn platform_info(device: &Device<'_>) -> Result<PlatformInfo, NvmlError> {
    let get = nvml_sym(device.nvml().lib().nvmlDeviceGetPlatformInfo.as_ref())?;
    let mut info = nvmlPlatformInfo_v2_t {
        version: size_of::<nvmlPlatformInfo_v2_t>() as u32 | 2 << 24,
        ibGuid: [0; 16],
        chassisSerialNumber: [0; 16],
        slotNumber: 0,
        trayIndex: 0,
        hostId: 0,
        peerType: 0,
        moduleId: 0,
    };
    // SAFETY: `info` is version 2, and the library never writes more than the size in `version`.
    nvml_try(unsafe { get(handle(device), &mut info) })?;
    Ok(PlatformInfo {
        chassis: info.chassisSerialNumber,
        slot: info.slotNumber,
        tray: info.trayIndex,
    })
}

fn fabric_info_versioned(device: &Device<'_>, version: u32) -> Result<FabricInfo, NvmlError> {
    let get = nvml_sym(device.nvml().lib().nvmlDeviceGetGpuFabricInfoV.as_ref())?;
    // Version 2 ends after the health mask; the version includes the size.
    let size = match version {
        2 => 36,
        _ => size_of::<nvmlGpuFabricInfoV_t>() as u32,
    };
    let mut info = nvmlGpuFabricInfoV_t {
        version: size | version << 24,
        clusterUuid: [0; 16],
        status: 0,
        cliqueId: 0,
        state: 0,
        healthMask: 0,
        healthSummary: 0,
    };
    // SAFETY: `info` is version 3, which begins with version 2: the library never
    // writes more than the size in `version`.
    nvml_try(unsafe { get(handle(device), &mut info) })?;
    Ok(FabricInfo {
        cluster_uuid: info.clusterUuid,
        clique: info.cliqueId,
        state: info.state.into(),
        status: info.status,
        health: Some(info.healthMask),
    })
}

/// An event of a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Xid {
        /// The [`address`] of the device, if the library reports it.
        device: Option<usize>,
        xid: u64,
    },
    /// An event that was not requested.
    Other,
}

/// A set of watched events.
#[derive(Debug)]
pub(super) struct EventSet {
    set: nvmlEventSet_t,
    library: Arc<Loaded>,
}

// SAFETY: the library may be called from any thread, and a set is used only by its
// single owner.
unsafe impl Send for EventSet {}

impl EventSet {
    pub(super) fn new(library: &Arc<Loaded>) -> Result<Self, NvmlError> {
        // Do not create a set that could not be freed or read.
        nvml_sym(library.lib().nvmlEventSetFree.as_ref())?;
        nvml_sym(library.lib().nvmlEventSetWait_v2.as_ref())?;
        let create = nvml_sym(library.lib().nvmlEventSetCreate.as_ref())?;
        let mut set: nvmlEventSet_t = ptr::null_mut();
        // SAFETY: `set` outlives the call, which writes a handle to it.
        nvml_try(unsafe { create(&mut set) })?;
        Ok(Self {
            set,
            library: Arc::clone(library),
        })
    }

    /// Adds the XIDs of `device` to the set. `device` must be of the set's library.
    pub(super) fn watch_xids(&self, device: &Device<'_>) -> Result<(), NvmlError> {
        let register = nvml_sym(self.library.lib().nvmlDeviceRegisterEvents.as_ref())?;
        // SAFETY: the set is alive, and both handles are of one library.
        nvml_try(unsafe {
            register(
                handle(device),
                nvmlEventTypeXidCriticalError.into(),
                self.set,
            )
        })
    }

    /// Returns the next pending event. Does not wait.
    pub(super) fn next(&self) -> Result<Option<Event>, NvmlError> {
        let wait = nvml_sym(self.library.lib().nvmlEventSetWait_v2.as_ref())?;
        let mut event = nvmlEventData_t {
            device: ptr::null_mut(),
            eventType: 0,
            eventData: 0,
            gpuInstanceId: 0,
            computeInstanceId: 0,
        };
        // SAFETY: the set is alive; `event` outlives the call.
        match nvml_try(unsafe { wait(self.set, &mut event, 0) }) {
            Ok(()) => {
                let is_xid = event.eventType == u64::from(nvmlEventTypeXidCriticalError);
                Ok(Some(match is_xid {
                    true => Event::Xid {
                        device: (!event.device.is_null()).then_some(event.device as usize),
                        xid: event.eventData,
                    },
                    false => Event::Other,
                }))
            }
            Err(NvmlError::Timeout) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for EventSet {
    fn drop(&mut self) {
        if let Ok(free) = &self.library.lib().nvmlEventSetFree {
            // SAFETY: freed once, here, while the library is still loaded.
            unsafe { free(self.set) };
        }
    }
}

/// Counters of a GPU at one moment, from which rates are computed.
#[derive(Debug)]
pub(super) struct Sample {
    sample: nvmlGpmSample_t,
    library: Arc<Loaded>,
}

// SAFETY: as for `EventSet`.
unsafe impl Send for Sample {}

impl Sample {
    /// Reports whether `device` can be sampled.
    pub(super) fn supported(device: &Device<'_>) -> Result<bool, NvmlError> {
        let query = nvml_sym(device.nvml().lib().nvmlGpmQueryDeviceSupport.as_ref())?;
        let mut support = nvmlGpmSupport_t {
            version: NVML_GPM_SUPPORT_VERSION,
            isSupportedDevice: 0,
        };
        // SAFETY: `support` outlives the call and has its version.
        nvml_try(unsafe { query(handle(device), &mut support) })?;
        Ok(support.isSupportedDevice != 0)
    }

    /// Takes a sample of `device`, which must be of `library`.
    pub(super) fn take(library: &Arc<Loaded>, device: &Device<'_>) -> Result<Self, NvmlError> {
        let lib = library.lib();
        nvml_sym(lib.nvmlGpmSampleFree.as_ref())?;
        let get = nvml_sym(lib.nvmlGpmSampleGet.as_ref())?;
        let alloc = nvml_sym(lib.nvmlGpmSampleAlloc.as_ref())?;
        let mut sample: nvmlGpmSample_t = ptr::null_mut();
        // SAFETY: `sample` outlives the call, which writes a handle to it.
        nvml_try(unsafe { alloc(&mut sample) })?;
        let taken = Self {
            sample,
            library: Arc::clone(library),
        };
        // SAFETY: the sample was just created by the library of the device.
        nvml_try(unsafe { get(handle(device), taken.sample) })?;
        Ok(taken)
    }

    /// Returns the metrics `ids` between `earlier` and this sample, of one device.
    /// Metrics that the library does not answer are `None`.
    pub(super) fn since(&self, earlier: &Self, ids: &[u32]) -> Result<Vec<Option<f64>>, NvmlError> {
        let get = nvml_sym(self.library.lib().nvmlGpmMetricsGet.as_ref())?;
        // SAFETY: all zero is a value of each field: numbers and null pointers.
        let mut request: Box<nvmlGpmMetricsGet_t> = unsafe { Box::new(std::mem::zeroed()) };
        let count = ids.len().min(request.metrics.len());
        request.version = NVML_GPM_METRICS_GET_VERSION;
        request.numMetrics = count as u32;
        request.sample1 = earlier.sample;
        request.sample2 = self.sample;
        for (metric, &id) in request.metrics.iter_mut().zip(ids) {
            metric.metricId = id;
            metric.nvmlReturn = NvmlError::NotSupported.into();
        }
        // SAFETY: both samples are alive; the library reads and writes the
        // first `numMetrics` metrics, which exist.
        nvml_try(unsafe { get(&raw mut *request) })?;
        let value = |metric: &nvml_wrapper_sys::bindings::nvmlGpmMetric_t| {
            (nvml_try(metric.nvmlReturn).is_ok() && metric.value.is_finite())
                .then_some(metric.value)
        };
        Ok(request.metrics[..count].iter().map(value).collect())
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        if let Ok(free) = &self.library.lib().nvmlGpmSampleFree {
            // SAFETY: freed once, here, while the library is still loaded.
            unsafe { free(self.sample) };
        }
    }
}
