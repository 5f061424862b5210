import pytest

from omni_cli.plan.devices import visible_devices


class Nvml:
    """A machine with three GPUs."""

    class NVMLError(Exception):
        pass

    uuids = ("GPU-aa11", "GPU-aa22", "GPU-bb33")
    open = 0

    def nvmlInit(self):
        self.open += 1

    def nvmlShutdown(self):
        self.open -= 1

    def nvmlDeviceGetCount(self):
        return 3

    def nvmlDeviceGetHandleByIndex(self, index):
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid):
        if uuid != "MIG-1":
            raise self.NVMLError("not found")
        return 1

    def nvmlDeviceGetUUID(self, handle):
        return self.uuids[handle].encode()

    def nvmlDeviceGetName(self, handle):
        return f"H{handle}"

    NVML_P2P_CAPS_INDEX_READ, NVML_P2P_STATUS_OK = 0, 0

    def nvmlDeviceGetP2PStatus(self, reader, device, index):
        """0 and 1 read each other; 2 reads none, and of reading it nothing is known."""
        assert (reader != device, index) == (True, 0)
        if device == 2:
            raise self.NVMLError("Not Supported")
        return 3 if reader == 2 else 0

    def nvmlDeviceGetMemoryInfo(self, handle):
        return type("Memory", (), {"total": (handle + 1) << 30})


@pytest.mark.parametrize(
    ("listed", "physical", "names"),
    [
        (None, ["0", "1", "2"], ["H0", "H1", "H2"]),
        ("", [], []),
        ("-1", [], []),
        ("2,0", ["2", "0"], ["H2", "H0"]),
        ("1, 2", ["1", "2"], ["H1", "H2"]),
        ("0,7,1", ["0"], ["H0"]),
        ("0,-1,1", ["0"], ["H0"]),
        ("1,1", ["1"], ["H1"]),
        ("GPU-bb,GPU-aa11", ["GPU-bb", "GPU-aa11"], ["H2", "H0"]),
        ("GPU-aa", [], []),
        ("MIG-1", ["MIG-1"], ["H1"]),
        ("MIG-2,0", [], []),
    ],
)
def test_positions_map_to_physical_ids_as_cuda_reads_the_list(listed, physical, names):
    nvml = Nvml()
    found = visible_devices({} if listed is None else {"CUDA_VISIBLE_DEVICES": listed}, lambda: nvml)
    assert [device.physical for device in found.devices] == physical
    assert [device.name for device in found.devices] == names
    assert nvml.open == 0


def test_a_machine_without_a_driver_has_none_and_says_why():
    class Absent(Nvml):
        def nvmlInit(self):
            raise self.NVMLError("NVML Shared Library Not Found")

    found = visible_devices({}, Absent)
    assert len(found) == 0
    assert "Not Found" in found.note


def test_peer_access_is_by_position_and_comes_with_its_reason():
    found = visible_devices({"CUDA_VISIBLE_DEVICES": "2,0,1"}, Nvml)
    assert found.no_peer_access(1, 2) == found.no_peer_access(2, 1) == ""
    assert found.no_peer_access(0, 1) == "they hang on different hubs"
    assert found.no_peer_access(1, 0) == "NVML says Not Supported"
